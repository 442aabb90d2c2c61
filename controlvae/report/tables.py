"""A table of the paper filled in from run folders: mean ± sd over seeds beside what was printed, and the difference."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.experiments import PRESETS, RunFolder, changed
from controlvae.experiments.folder import write_text
from controlvae.experiments.paper import PaperTable, Printed
from controlvae.report.codes import ScoreFile
from controlvae.report.images import fid_words

Measured = RunFolder | ScoreFile


@dataclass(frozen=True)
class Cell:
    """Our numbers for one place of a table, one per seed, and the paper's."""

    values: tuple[float, ...]
    printed: Printed | None  # None where the paper has no such number

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def words(self) -> str:
        """`0.5479 ± 0.0270 (paper 0.5628 ± 0.0222, -0.0149)`"""
        if len(self.values) == 1 and isinstance(self.values[0], int):
            ours = str(self.values[0])  # a count
        else:
            ours = "–" if self.mean is None else _pair(self.mean, self.sd)
        if self.printed is None:
            return ours
        paper, digits = f"paper {_pair(self.printed.mean, self.printed.sd)}", _digits(self.printed.mean)
        difference = "" if self.mean is None else f", {self.mean - self.printed.mean:+.{digits}f}"
        return f"{ours} ({paper}{difference})"


def write_table(table: PaperTable, runs: Mapping[str, Sequence[Measured]], out: Path) -> str:
    """Writes `NAME.md` and `NAME.csv` into a folder and returns the Markdown. `runs` holds each preset's seeds."""
    lines = [f"**{table.title}**", "", f"| method | seeds | steps | {' | '.join(table.columns)} |"]
    lines.append(f"| --- | ---: | ---: | {' | '.join('---' for _ in table.columns)} |")
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(["method", "preset", "seed", "step", *table.columns])
    for row in table.rows:
        measured = [(folder, metrics) for folder in runs.get(row.preset, []) if (metrics := folder.metrics())]
        for folder, metrics in measured:
            seed = folder.experiment().training.seed if isinstance(folder, RunFolder) else folder.path.name
            numbers = [metrics.get("step"), *(look_up(metrics, path) for path in table.columns.values())]
            writer.writerow([row.method, row.preset, seed, *("" if number is None else number for number in numbers)])
        steps = sorted({metrics["step"] for _, metrics in measured if "step" in metrics})
        cells = [
            Cell(tuple(v for _, m in measured if (v := look_up(m, path)) is not None), row.printed.get(name)).words()
            for name, path in table.columns.items()
        ]
        shown = " to ".join(f"{step:,}" for step in dict.fromkeys([*steps[:1], *steps[-1:]])) or "–"
        lines.append(f"| {row.method} | {len(measured) or '–'} | {shown} | {' | '.join(cells)} |")
    notes = [table.note, *_notes(table, runs)]
    lines += [line for note in notes if note for line in ("", note)]
    text = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{table.name}.md", text)
    write_text(out / f"{table.name}.csv", sheet.getvalue())
    return text


def _notes(table: PaperTable, runs: Mapping[str, Sequence[Measured]]) -> list[str]:
    """What the numbers were measured on, and which runs are not what the table says."""
    found = [(name, folder, metrics) for name, own in runs.items() for folder in own if (metrics := folder.metrics())]
    notes, columns = [], set(table.columns.values())
    if "elbo" in columns:
        notes += [f"ELBO: nats per example, {metrics['examples']:,} examples ({metrics['split']}), reconstruction: "
                  f"{metrics['likelihood']}." for _, _, metrics in found if "elbo" in metrics]  # fmt: skip
    if "fid.samples.score" in columns:
        notes += [f"{words}." for _, _, metrics in found if (words := fid_words(metrics)) is not None]
    first = table.rows[0].preset
    for name, folder, metrics in found:
        if isinstance(folder, ScoreFile):
            notes.append(
                f"{name}: scores of codes made elsewhere, {metrics['examples']:,} of {metrics['available']:,}."
            )
        elif name in PRESETS:
            other = _differences(folder, name)
            notes += [f"Not as printed: runs of {name} with another {', '.join(other)}."] if other else []
        else:
            other = _differences(folder, first)
            notes.append(f"{name} is {first} with another {', '.join(other) or 'name'}.")
    return list(dict.fromkeys(notes))


def _differences(folder: RunFolder, name: str) -> list[str]:
    """The settings in which a run differs from a preset, but for its seed and length."""
    wording = {"name", "about", "paper", "training.seed", "training.steps"}
    return [path for path in changed(folder.experiment(), PRESETS[name]) if path not in wording]


def look_up(metrics: Mapping[str, Any], path: str) -> float | None:
    """A number in nested metrics by its dotted path; None where it was not measured."""
    value: Any = metrics
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if value is None or isinstance(value, int) else float(value)


def _pair(mean: float, sd: float | None) -> str:
    """`0.5628 ± 0.0222`, or `-372.10 ± 0.64`, or `6270 ± 41`."""
    digits = _digits(mean)
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")


def _digits(value: float) -> int:
    """Decimals that are not noise."""
    return 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 4
