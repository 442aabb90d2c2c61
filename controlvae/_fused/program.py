"""Programs of fused updates: what a law and its monitor do with the rows of a state block."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from controlvae._monitor.blocks import fold, observe
from controlvae._monitor.rows import BlockRows
from controlvae._monitor.state import (
    BlockSums,
    FloatVectors,
    Reading,
    pack_values,
    read_traits,
    unpack_floats,
)
from controlvae._state_layout import LawGroup, StateLayout
from controlvae.laws.base import Law
from controlvae.laws.trace import Operation, Recorder, Symbol, format_operand

MEASURED = "measured"  # name of the measurement; that of row 3 is r3
# Numbers that stay in the source although a setting of the law has the same value.
_COMMON_NUMBERS = {0.0, 0.5, 1.0, 2.0, math.inf}


class Program(NamedTuple):
    """Operations of an update, and the values to write. Numbers are operands, as in a trace."""

    update: tuple[Operation, ...]  # of the law and of the sums of the monitor
    fold: tuple[Operation, ...]  # of the monitor, when its block is full
    new_rows: dict[int, Any]  # values after the update by row: those of the law and the sums
    folded_rows: dict[int, Any]  # values of the monitor's rows after a full block
    beta_row: int
    sum_rows: tuple[int, ...]  # rows of the sums; the first counts updates

    def constants(self) -> Iterator[Any]:
        """Yield the numbers of the program. Equal structures give them in the same order."""
        for operation in (*self.update, *self.fold):
            numbers = [each for each in operation.operands if is_number(each)]
            yield from () if operation.kind == "pow" else numbers
        rows = (*self.new_rows.values(), *self.folded_rows.values())
        yield from (value for value in rows if is_number(value))

    def structure(self) -> tuple[Any, ...]:
        """Return all of the program but its numbers. Laws of equal structure share their code."""
        return (
            tuple(_outline(operation) for operation in self.update),
            tuple(_outline(operation) for operation in self.fold),
            tuple((row, _outline_operand(value)) for row, value in self.new_rows.items()),
            tuple((row, _outline_operand(value)) for row, value in self.folded_rows.items()),
        )


class LawKind(NamedTuple):
    """Models whose laws have programs of equal structure."""

    program: Program  # of the first model
    models: list[int]
    constants: list[tuple[float, ...]]  # numbers of the program, for each model
    is_setting: tuple[bool, ...]  # for each number: it comes from a setting, or models differ in it


def trace_update(group: LawGroup, layout: StateLayout, rows: BlockRows) -> Program:
    """Return the program of a law.

    Args:
        group: Models under the law.
        layout: Layout of the states of all laws.
        rows: Rows of the state block.

    Raises:
        TypeError: If the law branches on values.
    """
    record = Recorder()
    block = [record.symbol(f"r{row}") for row in range(len(rows.names))]
    measured = record.symbol(MEASURED)
    state = group.state_type(*(block[row] for row in group.rows))
    after = group.law.update(state, measured, record)
    new_rows = dict(zip(group.rows, after, strict=True))
    sum_rows = tuple(range(rows.sums.start, rows.sums.stop))
    if not sum_rows:
        update = tuple(record.operations)
        return Program(update, (), new_rows, {}, layout.row["beta"], ())
    target = getattr(after, "target", 0.0)
    sums = observe(BlockSums(*(block[row] for row in sum_rows)), measured, target, record)
    new_rows |= zip(sum_rows, sums, strict=True)
    length = len(record.operations)
    # A schedule has no target, and its weight has no bounds.
    unclamped = getattr(after, "unclamped_beta", after.beta)
    folded = fold(
        unpack_floats(block[rows.monitor]),
        sums,
        Reading(after.step, target, after.beta, unclamped),
        read_traits(group.law),
        record,
        SymbolVectors(record),
    )
    monitor_rows = range(rows.monitor.start, rows.monitor.stop)
    return Program(
        tuple(record.operations[:length]),
        tuple(record.operations[length:]),
        new_rows,
        dict(zip(monitor_rows, pack_values(folded), strict=True)),
        layout.row["beta"],
        sum_rows,
    )


def group_by_structure(layout: StateLayout, rows: BlockRows) -> list[LawKind]:
    """Return the laws grouped by the structure of their programs.

    Args:
        layout: Layout of the states of all laws.
        rows: Rows of the state block.
    """
    kinds: dict[Any, LawKind] = {}
    settings: dict[Any, list[set[float]]] = {}
    for group in layout.groups:
        program = trace_update(group, layout, rows)
        key = program.structure()
        kind = kinds.setdefault(key, LawKind(program, [], [], ()))
        models = range(group.models.start, group.models.stop)
        kind.models.extend(models)
        kind.constants.extend([tuple(map(float, program.constants()))] * len(models))
        settings.setdefault(key, []).append(_settings(group.law))
    return [
        kind._replace(is_setting=tuple(_find_settings(kind.constants, settings[key])))
        for key, kind in kinds.items()
    ]


class SymbolVectors(FloatVectors):
    """Operations on the vectors of a monitor as tuples of symbols."""

    def __init__(self, record: Recorder) -> None:
        self._record = record

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        pairs = zip(yes, no, strict=True)
        return tuple(self._record.where(condition, y, n) for y, n in pairs)

    def store(self, means: Any, index: Any, value: Any) -> Any:  # type: ignore[override]
        return tuple(
            self._record.where(index == number, value, mean) for number, mean in enumerate(means)
        )


def is_number(value: Any) -> bool:
    """Return True for a number that a table of constants may hold."""
    return not isinstance(value, Symbol | bool)


def _outline(operation: Operation) -> tuple[Any, ...]:
    # A square and a root have special code, so an exponent is part of the structure.
    outline = format_operand if operation.kind == "pow" else _outline_operand
    return operation.kind, *map(outline, operation.operands)


def _outline_operand(operand: Any) -> str:
    return "#" if is_number(operand) else format_operand(operand)


def _settings(part: Law) -> set[float]:
    """Return the numbers among the settings of a law and of its schedule, without signs."""
    values: set[float] = set()
    for setting in vars(part).values():
        if isinstance(setting, Law):
            values |= _settings(setting)
        else:
            each: Iterable[Any] = setting if isinstance(setting, tuple) else (setting,)
            values |= {abs(float(number)) for number in each if isinstance(number, int | float)}
    return values - _COMMON_NUMBERS


def _find_settings(
    constants: Sequence[tuple[float, ...]], settings: Sequence[set[float]]
) -> Iterator[bool]:
    """Yield for each number of a program whether it is better read from memory.

    Laws that differ in these numbers alone then share a kernel.
    """
    known = set().union(*settings)
    for column in zip(*constants, strict=True):
        yield len(set(column)) > 1 or abs(column[0]) in known
