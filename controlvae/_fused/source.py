"""Triton source of fused updates: a function for each kind of law, and the kernel that calls them.

A program updates one model with scalars, for which Triton compiles a long update in less than a
second; with vectors of models it takes up to twenty. Everything is float64 in the order of the
law's own operations, so that a kernel without fused multiply-adds gives the numbers of the law on
floats.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from controlvae._fused.program import MEASURED, LawKind, is_number
from controlvae._monitor.state import BLOCK_STEPS
from controlvae.laws.checks import LARGEST_MEASUREMENT, UNUSABLE_SUM
from controlvae.laws.trace import Operation, Symbol

_EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "truediv": "{0} / {1}",
    "pow": "power({0}, {1})",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "floor": "tl.floor({0})",
    "sigmoid": "sigmoid({0})",
    "where": "tl.where({0}, {1}, {2})",
    "clip": "tl.where({0} < {1}, {1}, tl.where({0} > {2}, {2}, {0}))",
}
_LOGIC = {"and", "or"}
_LIBRARY_POWER = "libdevice.pow(x, y)"
# Triton's interpreter has no device library.
_PLAIN_POWER = "tl.exp(y * tl.log(x))"

_HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def power(x, y):
    return {power}


@triton.jit
def sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1 / (1 + small), small / (1 + small))
"""

_KERNEL = """\
@triton.jit(do_not_specialize=["models", "table_stride", "model_stride", "window", "last"])
def step(
    block, table, measured, weight, kinds, models, table_stride, model_stride, window, last,
    ACCUMULATES: tl.constexpr, DELAYED: tl.constexpr,
):
    model = tl.program_id(0)
    cell = block + model
    constant = table + model * model_stride
    value = tl.load(measured + model).to(tl.float64)
    beta = tl.load(cell + {beta} * models)
{find_kind}
    if ACCUMULATES:
        total = tl.load(cell + {total} * models) + value
        count = tl.load(cell + {count} * models) + 1
        if (count >= window.to(tl.float64)) | (last != 0):
            tl.store(cell + {total} * models, 0.0)
            tl.store(cell + {count} * models, 0.0)
            value = total / count
{update_window}
        else:
            # Bare numbers would be rounded to float32.
            largest = tl.full((), {largest}, tl.float64)
            unusable = tl.full((), {unusable}, tl.float64)
            total = tl.where(tl.abs(total) < largest, total, unusable)
            tl.store(cell + {total} * models, total)
            tl.store(cell + {count} * models, count)
    else:
{update}
    if weight.dtype.element_ty == tl.float16:
        beta = tl.where(beta > 65504.0, 65504.0, tl.where(beta < -65504.0, -65504.0, beta))
    if weight.dtype.element_ty != tl.float64:
        beta = beta.to(tl.float32)
    tl.store(weight + model, beta.to(weight.dtype.element_ty))
"""


def write_source(kinds: Sequence[LawKind], pending_row: int, *, interpreted: bool) -> str:
    """Return the source of a module with the kernel `step`.

    Args:
        kinds: Laws grouped by the structure of their programs.
        pending_row: Row of the sum of pending measurements; their number is in the next row.
        interpreted: Write for Triton's interpreter.
    """
    header = _HEADER.format(power=_PLAIN_POWER if interpreted else _LIBRARY_POWER)
    functions = [_write_function(number, kind) for number, kind in enumerate(kinds)]
    kernel = _KERNEL.format(
        find_kind="" if len(kinds) == 1 else "    kind = tl.load(kinds + model)",
        beta=kinds[0].program.beta_row,
        total=pending_row,
        count=pending_row + 1,
        largest=LARGEST_MEASUREMENT,
        unusable=UNUSABLE_SUM,
        update_window=_indent(_write_calls(len(kinds)), 3),
        update=_indent(_write_calls(len(kinds), keep_weight="DELAYED"), 2),
    )
    return "\n\n".join([header, *functions, kernel])


def table_columns(kind: LawKind) -> list[tuple[float, ...]]:
    """Return the numbers that the kernel reads from memory: for each of them, one per model."""
    columns = zip(zip(*kind.constants, strict=True), kind.is_setting, strict=True)
    return list(dict.fromkeys(column for column, is_setting in columns if is_setting))


def _write_calls(kinds: int, keep_weight: str = "") -> list[str]:
    """Return the lines that call the function of the program's kind of law."""
    arguments = "(cell, constant, models, table_stride, value)"
    lines: list[str] = []
    for number in range(kinds):
        call = [f"update_{number}{arguments}"]
        if keep_weight:
            call = [f"new_beta = {call[0]}", f"if not {keep_weight}:", "    beta = new_beta"]
        if kinds == 1:
            return call
        lines += [f"if kind == {number}:", *(f"    {line}" for line in call)]
    return lines


def _write_function(number: int, kind: LawKind) -> str:
    """Return the function of one kind of law. It writes the new rows and returns the weight."""
    writer = _OperandWriter(kind)
    program = kind.program
    update = [writer.line(operation) for operation in program.update]
    fold = [writer.line(operation) for operation in program.fold]
    new = {row: writer.operand(value, is_float=True) for row, value in program.new_rows.items()}
    folded = {
        row: writer.operand(value, is_float=True) for row, value in program.folded_rows.items()
    }
    used = {*_rows_read(program.update), *_symbol_rows(program.new_rows.values())}
    later = {*_rows_read(program.fold), *_symbol_rows(program.folded_rows.values())} - used
    body = [*writer.definitions, *map(_load, sorted(used)), *update]
    law_rows = {row: value for row, value in new.items() if row not in program.sum_rows}
    body += [_store(row, value) for row, value in law_rows.items() if value != f"r{row}"]
    if program.sum_rows:
        sums = {row: new[row] for row in program.sum_rows}
        body += [
            f"if {sums[program.sum_rows[0]]} >= {BLOCK_STEPS}:",
            *(f"    {_store(row, '0.0')}" for row in sums),
            *(f"    {_load(row)}" for row in sorted(later)),
            *(f"    {line}" for line in fold),
            *(f"    {_store(*pair)}" for pair in folded.items() if pair[1] != f"r{pair[0]}"),
            "else:",
            *(f"    {_store(*pair)}" for pair in sums.items()),
        ]
    body.append(f"return {new[program.beta_row]}")
    name = f"def update_{number}(cell, constant, models, table_stride, {MEASURED}):\n"
    return "@triton.jit\n" + name + _indent(body, 1) + "\n"


class _OperandWriter:
    """Writer of operations, which gives every number a variable of float64."""

    def __init__(self, kind: LawKind) -> None:
        columns = zip(*kind.constants, strict=True)
        self._numbers = iter(list(zip(columns, kind.is_setting, strict=True)))
        self._table = {column: f"c{slot}" for slot, column in enumerate(table_columns(kind))}
        self._literals: dict[str, str] = {}

    @property
    def definitions(self) -> list[str]:
        """Lines that define the variables of all numbers written so far."""
        loads = [
            f"{name} = tl.load(constant + {slot} * table_stride)"
            for slot, name in enumerate(self._table.values())
        ]
        literals = self._literals.items()
        return [*loads, *(f"{name} = tl.full((), {text}, tl.float64)" for text, name in literals)]

    def line(self, operation: Operation) -> str:
        """Return the assignment of an operation. Numbers must come in the program's order."""
        kind, operands = operation.kind, operation.operands
        if kind == "pow":
            return f"{operation.name} = {self._power(*operands)}"
        is_float = kind not in _LOGIC
        written = [
            self.operand(each, is_float=is_float and not (kind == "where" and position == 0))
            for position, each in enumerate(operands)
        ]
        return f"{operation.name} = {_EXPRESSIONS[kind].format(*written)}"

    def operand(self, value: Any, *, is_float: bool) -> str:
        """Return the variable of an operand; the result of a comparison becomes 0 or 1."""
        if isinstance(value, Symbol):
            return f"{value.name}.to(tl.float64)" if value.is_bool and is_float else value.name
        if not is_number(value):
            raise TypeError(f"a traced operand must be a number or a symbol, got {value!r}")
        column, is_setting = next(self._numbers)
        return self._table[column] if is_setting else self._literal(column[0])

    def _power(self, base: Any, exponent: Any) -> str:
        if isinstance(base, Symbol) and exponent == 2:
            return f"{base.name} * {base.name}"
        if isinstance(base, Symbol) and exponent == 0.5:
            return f"tl.sqrt({base.name})"
        pair = [
            each.name if isinstance(each, Symbol) else self._literal(float(each))
            for each in (base, exponent)
        ]
        return _EXPRESSIONS["pow"].format(*pair)

    def _literal(self, value: float) -> str:
        text = repr(value)
        if not math.isfinite(value):
            text = f'float("{text}")'
        return self._literals.setdefault(text, f"k{len(self._literals)}")


def _rows_read(operations: Iterable[Operation]) -> Iterator[int]:
    for operation in operations:
        yield from _symbol_rows(operation.operands)


def _symbol_rows(operands: Iterable[Any]) -> Iterator[int]:
    """Yield the rows of the symbols that stand for rows of the block."""
    for operand in operands:
        if isinstance(operand, Symbol) and operand.name.startswith("r"):
            yield int(operand.name[1:])


def _load(row: int) -> str:
    return f"r{row} = tl.load(cell + {row} * models)"


def _store(row: int, value: str) -> str:
    return f"tl.store(cell + {row} * models, {value})"


def _indent(lines: Iterable[str], levels: int) -> str:
    return "\n".join("    " * levels + line for line in lines)
