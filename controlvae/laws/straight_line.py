"""Updates of laws as straight-line Python code, for loops on floats.

A law is written once against a backend. With floats, most of the time of an update goes into calls
of small functions. `compile_update` records the operations of the law (`laws/trace.py`) and turns
the record into one function that computes exactly the same without those calls.
"""

import math
from collections.abc import Callable
from typing import Any

from controlvae.laws.backend import FLOATS
from controlvae.laws.base import Law
from controlvae.laws.trace import Operation, Recorder, format_operand

Update = Callable[[Any, float], Any]  # state and measurement -> state

_EXPRESSIONS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "truediv": "{0} / {1}",
    "pow": "{0} ** {1}",
    "and": "{0} and {1}",
    "or": "{0} or {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "neg": "-{0}",
    "abs": "abs({0})",
    "exp": "exp({0})",
    "log": "log({0})",
    "floor": "floor({0})",
    "sigmoid": "sigmoid({0})",
    "where": "{1} if {0} else {2}",
    "clip": "{1} if {0} < {1} else {2} if {0} > {2} else {0}",
}


def compile_update(law: Law) -> Update:
    """Return a function that does the same as `law.update` with floats, in a third of the time.

    Args:
        law: Law whose update consists of operations of its backend. It must not branch on values.

    >>> update = compile_update(PI(18.0))
    >>> update(PI(18.0).initial_state(), 20.0).beta == PI(18.0).update(
    ...     PI(18.0).initial_state(), 20.0, FLOATS
    ... ).beta
    True
    """
    record = Recorder()
    state = law.initial_state()
    fields = [record.symbol(f"s{number}") for number in range(len(state))]
    after = law.update(type(state)(*fields), record.symbol("measured"), record)
    arguments = ", ".join(field.name for field in fields)
    results = ", ".join(format_operand(value) for value in after)
    body = map(_write_line, record.operations)
    lines = [f"{arguments}, = state", *body, f"return State({results})"]
    source = "def update(state, measured):\n" + "".join(f"    {line}\n" for line in lines)
    names: dict[str, Any] = {
        "State": type(after),
        "exp": math.exp,
        "log": math.log,
        "floor": math.floor,
        "sigmoid": FLOATS.sigmoid,
        "inf": math.inf,
        "nan": math.nan,
    }
    # The source consists of names and numbers that this package has written.
    exec(compile(source, f"<update of {type(law).__name__}>", "exec"), names)
    update: Update = names["update"]
    return update


def _write_line(operation: Operation) -> str:
    operands = map(format_operand, operation.operands)
    return f"{operation.name} = {_EXPRESSIONS[operation.kind].format(*operands)}"
