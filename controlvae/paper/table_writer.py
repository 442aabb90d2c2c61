"""Write a table of the paper from run folders: mean ± sd over seeds next to the printed numbers."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.lab.evaluation.statistics import sample_sd
from controlvae.lab.io import write_csv, write_text
from controlvae.lab.runs.folder import RunFolder, look_up, nested_value
from controlvae.paper.measured import (
    EvaluatedSeeds,
    MeasuredRun,
    SeedsByMethod,
    changed_from_preset,
    changed_preset_settings,
    describe_changed_settings,
    describe_seed,
)
from controlvae.paper.specs import PaperTable, Printed, Row
from controlvae.paper.table_notes import compose_table_notes, decimal_places


@dataclass(frozen=True)
class Cell:
    """Measured values of one table cell, one per seed, and the paper's number."""

    values: tuple[float, ...]
    printed: Printed | None
    comparable: bool = True  # False if the settings differ from the preset's

    @property
    def mean(self) -> float | None:
        """Mean over seeds, or None without a value."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over seeds, or None for a single seed."""
        return sample_sd(self.values) if len(self.values) > 1 else None

    def format(self, digits: int) -> str:
        """Format the cell, e.g. `0.5479 ± 0.0270 (paper 0.5628 ± 0.0222, -0.0149)`."""
        if len(self.values) == 1 and isinstance(self.values[0], int):
            measured = str(self.values[0])  # a count
        else:
            measured = "–" if self.mean is None else _format_pair(self.mean, self.sd, digits)
        if self.printed is None:
            return measured
        places = decimal_places(self.printed.mean)
        paper = f"paper {_format_pair(self.printed.mean, self.printed.sd, places)}"
        if self.mean is None or not self.comparable:
            return f"{measured} ({paper})"
        return f"{measured} ({paper}, {self.mean - self.printed.mean:+.{places}f})"


def write_table(table: PaperTable, runs: Mapping[str, Sequence[MeasuredRun]], out: Path) -> str:
    """Write `NAME.md` and `NAME.csv`.

    Args:
        table: Specification of the table.
        runs: Seeds of each method, by the key of its row.
        out: Folder to write to.

    Returns:
        The Markdown text.
    """
    seeds = {
        row.method: [(run, metrics) for run in runs.get(row.key, []) if (metrics := run.metrics())]
        for row in table.rows
    }
    heading = [f"**{compose_title(table, runs)}**", *describe_changed_settings(table.rows, runs)]
    lines = [line for text in heading for line in (text, "")]
    lines += _format_rows(table, seeds)
    notes = dict.fromkeys(compose_table_notes(table, seeds, runs))
    lines += [line for note in notes if note for line in ("", note)]
    markdown = "\n".join(lines) + "\n"
    write_text(out / f"{table.name}.md", markdown)
    _write_sheet(table, seeds, out)
    return markdown


def _write_sheet(table: PaperTable, seeds: SeedsByMethod, out: Path) -> None:
    heads = ["method", "preset", "seed", "step", *table.columns, *table.more]
    lines = [
        [row.method, row.preset, describe_seed(run), metrics.get("step")]
        + [look_up(metrics, path) for path in table.columns.values()]
        + [nested_value(metrics, path) for path in table.more.values()]
        for row in table.rows
        for run, metrics in seeds[row.method]
    ]
    write_csv(out / f"{table.name}.csv", heads, lines)


def _format_rows(table: PaperTable, seeds: SeedsByMethod) -> list[str]:
    """Return the head and one line per method. Measured numbers of a column have equal decimals."""
    lines = [f"| method | seeds | steps | {' | '.join(table.columns)} |"]
    lines.append(f"| --- | ---: | ---: | {' | '.join('---' for _ in table.columns)} |")
    rows = [_make_cells(table, row, seeds[row.method]) for row in table.rows]
    digits = [
        min((decimal_places(cell.mean) for cell in column if cell.mean is not None), default=0)
        for column in zip(*rows, strict=True)
    ]
    for row, cells in zip(table.rows, rows, strict=True):
        evaluated = seeds[row.method]
        texts = [
            cell.format(places) + _format_missing_seeds(cell, evaluated)
            for cell, places in zip(cells, digits, strict=True)
        ]
        count = len(evaluated) or "–"
        lines.append(
            f"| {row.method} | {count} | {_format_steps(evaluated)} | {' | '.join(texts)} |"
        )
    return lines


def _make_cells(table: PaperTable, row: Row, evaluated: EvaluatedSeeds) -> list[Cell]:
    changed = any(changed_preset_settings(row, run) for run, _ in evaluated)
    return [
        Cell(numbers_at(evaluated, path), row.printed.get(name), comparable=not changed)
        for name, path in table.columns.items()
    ]


def _format_missing_seeds(cell: Cell, evaluated: EvaluatedSeeds) -> str:
    if 0 < len(cell.values) < len(evaluated):
        return f" ({len(cell.values)} of {len(evaluated)} seeds)"
    return ""


def numbers_at(evaluated: EvaluatedSeeds, path: str) -> tuple[float, ...]:
    """Return the numbers at a dotted path of each seed's metrics, without missing ones."""
    values = (look_up(metrics, path) for _, metrics in evaluated)
    return tuple(value for value in values if value is not None)


def compose_title(table: PaperTable, runs: Mapping[str, Sequence[MeasuredRun]]) -> str:
    """Return the title, followed by the presets' terms if all runs share them."""
    changed = {
        path.partition(".")[0]
        for row in table.rows
        for run in runs.get(row.key, ())
        if isinstance(run, RunFolder)
        for path in changed_from_preset(run, row.preset or table.rows[0].key)
    }
    if table.terms and not changed & {"data", "model", "objective"}:
        return f"{table.title} ({table.terms})"
    return table.title


def _format_steps(evaluated: Sequence[tuple[MeasuredRun, Mapping[str, Any]]]) -> str:
    """Format steps as `1,500,000`, or as `57 of 120` if training has not finished."""
    progress = [
        (metrics["step"], run.experiment().training.steps)
        for run, metrics in evaluated
        if isinstance(run, RunFolder)
    ]
    if not progress:
        return "–"
    steps, goals = (_format_range(numbers) for numbers in zip(*progress, strict=True))
    return steps if all(step == goal for step, goal in progress) else f"{steps} of {goals}"


def _format_range(values: Sequence[int]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def _format_pair(mean: float, sd: float | None, digits: int) -> str:
    """Format `0.5628 ± 0.0222`, `-372.10 ± 0.64` or `6270 ± 41`."""
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")
