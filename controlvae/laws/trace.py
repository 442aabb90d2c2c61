"""Trace of a law: the operations of an update, recorded by calling the law once with symbols.

A law is written once against a backend. `Recorder` is a backend whose values are symbols. It writes
down each operation, so that other modules can turn an update into Python or Triton source.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from controlvae.laws.backend import Record, Value

_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow")
_LOGIC = ("and", "or")  # on the results of comparisons alone
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class Operation(NamedTuple):
    """Operation of a trace. An operand is a symbol or a number."""

    name: str  # of the variable that holds the result
    kind: str  # such as "add", "where" or "exp"
    operands: tuple[Any, ...]


class Symbol:
    """Value of which only the name of its variable is known."""

    __slots__ = ("is_bool", "name", "record")

    def __init__(self, name: str, record: "Recorder", is_bool: bool = False) -> None:
        self.name, self.record, self.is_bool = name, record, is_bool

    def __bool__(self) -> bool:
        raise TypeError("a law must not branch on values; use xp.where")

    def __abs__(self) -> "Symbol":
        return self.record.assign("abs", self)

    def __neg__(self) -> "Symbol":
        return self.record.assign("neg", self)

    __hash__ = None  # type: ignore[assignment]  # equality gives a symbol


def _add_operators() -> None:
    """Define the binary operators of a symbol, also with a number on the left."""

    def operator(kind: str, is_reversed: bool = False) -> Callable[[Symbol, Any], Any]:
        def apply(self: Symbol, other: Any) -> Any:
            if isinstance(other, bool) and kind in _LOGIC:
                is_neutral = other == (kind == "and")
                return self if is_neutral else other
            return self.record.assign(kind, *((other, self) if is_reversed else (self, other)))

        return apply

    for kind in (*_ARITHMETIC, *_LOGIC, *_COMPARISONS):
        setattr(Symbol, f"__{kind}__", operator(kind))
    for kind in (*_ARITHMETIC, *_LOGIC):
        setattr(Symbol, f"__r{kind}__", operator(kind, is_reversed=True))


_add_operators()


class Recorder:
    """Backend that records operations on symbols. Equal ones share a variable."""

    def __init__(self) -> None:
        self._operations: dict[tuple[str, ...], Operation] = {}

    @property
    def operations(self) -> list[Operation]:
        """Operations in the order in which the law does them."""
        return list(self._operations.values())

    def symbol(self, name: str) -> Symbol:
        """Return a symbol with this name."""
        return Symbol(name, self)

    def assign(self, kind: str, *operands: Any) -> Symbol:
        """Return the symbol of the result of an operation."""
        key = (kind, *map(format_operand, operands))
        if (operation := self._operations.get(key)) is None:
            operation = Operation(f"v{len(self._operations)}", kind, operands)
            self._operations[key] = operation
        is_bool = kind in _LOGIC or kind in _COMPARISONS
        if kind == "where":
            is_bool = all(is_boolean(operand) for operand in operands[1:])
        return Symbol(operation.name, self, is_bool)

    def sigmoid(self, x: Value, /) -> Value:
        return self.assign("sigmoid", x)

    def exp(self, x: Value, /) -> Value:
        return self.assign("exp", x)

    def log(self, x: Value, /) -> Value:
        return self.assign("log", x)

    def floor(self, x: Value, /) -> Value:
        return self.assign("floor", x)

    def clip(self, x: Value, low: float, high: float) -> Value:
        return self.assign("clip", x, low, high)

    def where(self, condition: Value, yes: Value, no: Value) -> Value:
        if isinstance(condition, bool):
            return yes if condition else no
        if format_operand(yes) == format_operand(no):
            return yes
        return self.assign("where", condition, yes, no)

    def choose(self, condition: Value, yes: Record, no: Record) -> Record:
        pairs = zip(yes, no, strict=True)
        return type(no)(*(self.where(condition, y, n) for y, n in pairs))


def is_boolean(value: Any) -> bool:
    """Return True for the result of a comparison."""
    return value.is_bool if isinstance(value, Symbol) else isinstance(value, bool)


def format_operand(value: Any) -> str:
    """Return the name of a symbol, or a number as Python source that gives exactly it."""
    if isinstance(value, Symbol):
        return value.name
    text = repr(float(value) if isinstance(value, float) else value)
    return f"({text})" if text.startswith("-") else text
