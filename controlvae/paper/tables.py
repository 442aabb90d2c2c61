"""A table of the paper filled in from run folders: mean ± sd over seeds beside what was printed, and the difference."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.lab.config import Experiment, changed_fields, preset
from controlvae.lab.evaluation.external_codes import ScoreFile
from controlvae.lab.evaluation.images import describe_fid
from controlvae.lab.evaluation.statistics import compare_means, sample_sd
from controlvae.lab.io import write_csv, write_text
from controlvae.lab.reports.notes import describe_data
from controlvae.lab.runs.folder import RunFolder, look_up, nested_value
from controlvae.lab.runs.loaded import format_count
from controlvae.laws import Cyclical, Schedule
from controlvae.laws.backend import FLOATS
from controlvae.metrics.disentanglement.mig import REMARK
from controlvae.paper.printed import PaperTable, Printed, Row

Measured = RunFolder | ScoreFile


@dataclass(frozen=True)
class Cell:
    """Our numbers for one place of a table, one per seed, and the paper's."""

    values: tuple[float, ...]
    printed: Printed | None  # None where the paper has no such number
    comparable: bool = True  # with the paper's: not where settings are others

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over seeds."""
        return sample_sd(self.values) if len(self.values) > 1 else None

    def words(self, digits: int) -> str:
        """`0.5479 ± 0.0270 (paper 0.5628 ± 0.0222, -0.0149)`, ours with so many decimals."""
        if len(self.values) == 1 and isinstance(self.values[0], int):
            ours = str(self.values[0])  # a count
        else:
            ours = "–" if self.mean is None else _pair(self.mean, self.sd, digits)
        if self.printed is None:
            return ours
        decimals = _digits(self.printed.mean)
        paper = f"paper {_pair(self.printed.mean, self.printed.sd, decimals)}"
        if self.mean is None or not self.comparable:
            return f"{ours} ({paper})"
        return f"{ours} ({paper}, {self.mean - self.printed.mean:+.{decimals}f})"


class ScoreProvenance(NamedTuple):
    """How a score was worked out: scores that differ in this do not compare."""

    estimator: str
    factors: tuple[str, ...]  # empty where a measurement of long ago does not say


Seeds = Sequence[tuple[Measured, Mapping[str, Any]]]  # of one method, and what was measured of them
Found = Mapping[str, Seeds]  # by method


def write_table(table: PaperTable, runs: Mapping[str, Sequence[Measured]], out: Path) -> str:
    """Writes `NAME.md` and `NAME.csv` into a folder and returns the Markdown. `runs` holds each row's seeds."""
    found = {
        row.method: [(one, metrics) for one in runs.get(row.key, []) if (metrics := one.metrics())]
        for row in table.rows
    }
    # Settings of one's own stand beside the title, which is of the paper's.
    heading = f"**{titled(table, runs)}**"
    lines = [line for words in (heading, *other_settings(table.rows, runs)) for line in (words, "")]
    lines += _rows(table, found)
    lines += [
        line for note in dict.fromkeys(_below(table, found, runs)) if note for line in ("", note)
    ]
    text = "\n".join(lines) + "\n"
    write_text(out / f"{table.name}.md", text)
    sheet = [
        [row.method, row.preset, seed_of(one), metrics.get("step")]
        + [look_up(metrics, path) for path in table.columns.values()]
        + [nested_value(metrics, path) for path in table.more.values()]
        for row in table.rows
        for one, metrics in found[row.method]
    ]
    write_csv(
        out / f"{table.name}.csv",
        ["method", "preset", "seed", "step", *table.columns, *table.more],
        sheet,
    )
    return text


def _rows(table: PaperTable, found: Found) -> list[str]:
    """The table's head and a line for each method; all numbers of ours in a column have as many decimals."""
    lines = [f"| method | seeds | steps | {' | '.join(table.columns)} |"]
    lines.append(f"| --- | ---: | ---: | {' | '.join('---' for _ in table.columns)} |")
    rows = [_cells(table, row, found[row.method]) for row in table.rows]
    digits = [
        min((_digits(cell.mean) for cell in column if cell.mean is not None), default=0)
        for column in zip(*rows, strict=True)
    ]
    for row, cells in zip(table.rows, rows, strict=True):
        measured = found[row.method]
        words = [
            cell.words(places) + _fewer(cell, measured)
            for cell, places in zip(cells, digits, strict=True)
        ]
        lines.append(
            f"| {row.method} | {len(measured) or '–'} | {_steps(measured)} | {' | '.join(words)} |"
        )
    return lines


def _cells(table: PaperTable, row: Row, measured: Seeds) -> list[Cell]:
    own = any(_not_the_presets(row, one) for one, _ in measured)
    return [
        Cell(_numbers(measured, path), row.printed.get(name), comparable=not own)
        for name, path in table.columns.items()
    ]


def _fewer(cell: Cell, measured: Seeds) -> str:
    """Where not all seeds have a number, how many do."""
    return (
        f" ({len(cell.values)} of {len(measured)} seeds)"
        if 0 < len(cell.values) < len(measured)
        else ""
    )


def _numbers(measured: Seeds, path: str) -> tuple[float, ...]:
    """What stands at a path of each seed's metrics, where anything does."""
    return tuple(value for _, metrics in measured if (value := look_up(metrics, path)) is not None)


def _below(table: PaperTable, found: Found, runs: Mapping[str, Sequence[Measured]]) -> list[str]:
    """What is said below a table: how methods differ, how scores were worked out, what must be known of a run."""
    first = next(name for name, path in table.columns.items() if "per_factor" not in path)
    by_method = {
        method: _numbers(measured, table.columns[first]) for method, measured in found.items()
    }
    spread = (
        "± is the sample standard deviation over seeds."
        if any(len(own) > 1 for own in by_method.values())
        else ""
    )
    worked_out = _worked_out(_scores(table), found)
    alike = worked_out[_score(table.columns[first])]
    lines = [spread, _differences_note(first, by_method, list(alike.values())), table.note]
    lines += _estimators(worked_out.values())
    for row in table.rows:
        for one, metrics in found[row.method]:
            lines += _notes(table, row, one, metrics, runs)
    return lines


def _score(path: str) -> str:
    """What a column is a number of: `rmig` of `rmig.per_factor.x`."""
    return path.partition(".")[0]


def _scores(table: PaperTable) -> list[str]:
    return list(dict.fromkeys(map(_score, table.columns.values())))


def _worked_out(scores: Iterable[str], found: Found) -> dict[str, dict[ScoreProvenance, list[str]]]:
    """For each score the ways it was worked out, and whose seeds were: a method is there once for each."""
    ways: dict[str, dict[ScoreProvenance, list[str]]] = {score: {} for score in scores}
    for method, measured in found.items():
        for _, metrics in measured:
            for score, methods in ways.items():
                if isinstance(scored := metrics.get(score), Mapping) and "estimator" in scored:
                    estimator, _, _ = scored["estimator"].partition(REMARK)
                    factors = (
                        scored.get("per_factor")
                        or nested_value(metrics, "ground_truth.names")
                        or ()
                    )
                    methods.setdefault(
                        ScoreProvenance(estimator, tuple(sorted(factors))), []
                    ).append(method)
    return {score: _joined(methods) for score, methods in ways.items()}


def _differences_note(
    column: str, by_method: Mapping[str, Sequence[float]], alike: Sequence[Sequence[str]]
) -> str:
    """How far every method is from the first, and whether that is more than chance; nothing where seeds are single.

    Methods whose numbers were all worked out like those of the first, where they say how, are compared alone.
    """
    (first, own), *others = by_method.items()
    ways = {
        method: [place for place, methods in enumerate(alike) if method in methods]
        for method in by_method
    }
    comparable = {
        method for method, ways_of in ways.items() if ways_of == ways[first] and len(ways_of) <= 1
    }
    words, digits = [], _digits(statistics.fmean(own)) if own else 0
    for method, values in others:
        if method in comparable and (found := compare_means(values, own)) is not None:
            words.append(
                f"{method} {found.mean:+.{digits}f} ± {found.error:.{digits}f} (p = {found.p_value:.2g})"
            )
    how = "± its standard error, p by dealing the seeds out to the two at random, for each method by itself"
    return f"{column}, difference from {first}, {how}: {'; '.join(words)}." if words else ""


def titled(table: PaperTable, runs: Mapping[str, Sequence[Measured]]) -> str:
    """Its title, with the terms of its presets where no run has others; one's own are held against the first row's."""
    own = {
        path.partition(".")[0]
        for row in table.rows
        for one in runs.get(row.key, ())
        if isinstance(one, RunFolder)
        for path in _differences(one, row.preset or table.rows[0].key)
    }
    return (
        f"{table.title} ({table.terms})"
        if table.terms and not own & {"data", "model", "objective"}
        else table.title
    )


def other_settings(rows: Sequence[Row], runs: Mapping[str, Sequence[Measured]]) -> list[str]:
    """Which settings of which methods are not those of their presets, in a line; nothing where all are."""
    apart = [
        (row.method, _not_the_presets(row, one))
        for row in rows
        for one in runs.get(row.key, [])
        if row.preset
    ]
    of: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for _, paths in apart for path in paths):
        methods = [method for method, paths in apart if path in paths]
        whose = "all runs" if len(methods) == len(apart) else "; ".join(dict.fromkeys(methods))
        of.setdefault(whose, []).append(path)
    words = "; ".join(f"{', '.join(paths)} ({whose})" for whose, paths in of.items())
    return [f"Not the presets' settings: {words}."] if words else []


def _not_the_presets(row: Row, one: Measured) -> list[str]:
    """The settings in which a run differs from the preset its row names."""
    return [] if row.preset is None or isinstance(one, ScoreFile) else _differences(one, row.preset)


def _steps(measured: Seeds) -> str:
    """`1,500,000`; `57 of 120` where training has not come to its end; of several seeds, the least and the most."""
    came = [
        (metrics["step"], one.experiment().training.steps)
        for one, metrics in measured
        if isinstance(one, RunFolder)
    ]
    if not came:
        return "–"
    steps, goals = (_span(each) for each in zip(*came, strict=True))
    return steps if all(step == goal for step, goal in came) else f"{steps} of {goals}"


def _span(values: Sequence[int]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def _joined(methods: Mapping[ScoreProvenance, list[str]]) -> dict[ScoreProvenance, list[str]]:
    """Those that do not say their factors go with others of their estimator, where all of those are alike."""
    joined: dict[ScoreProvenance, list[str]] = {}
    for how, of in methods.items():
        others = [one for one in methods if one.estimator == how.estimator and one.factors]
        to = others[0] if not how.factors and len(others) == 1 else how
        joined.setdefault(to, []).extend(of)
    return joined


def _estimators(worked_out: Collection[Mapping[ScoreProvenance, list[str]]]) -> list[str]:
    """How each score was worked out; where not all methods share that, whose it was."""
    lines = []
    for methods in worked_out:
        several = len({how.factors for how in methods}) > 1
        for how, of in methods.items():
            of_factors = (
                f", of the factors {', '.join(how.factors)}" if several and how.factors else ""
            )
            words = how.estimator + of_factors
            lines.append(
                f"{words}." if len(methods) == 1 else f"{'; '.join(dict.fromkeys(of))}: {words}."
            )
    if any(len(methods) > 1 for methods in worked_out):
        lines.append(
            "Scores worked out in different ways, of other factors or of different numbers of examples do not compare."
        )
    return lines


def _notes(
    table: PaperTable,
    row: Row,
    one: Measured,
    metrics: Mapping[str, Any],
    runs: Mapping[str, Sequence[Measured]],
) -> list[str]:
    """What the numbers of one run were measured on, and whether it is what its row says."""
    notes, columns = [], set(table.columns.values())
    for score in _scores(table):
        remark = str(nested_value(metrics, f"{score}.estimator") or "").partition(REMARK)[2]
        notes += [f"{row.method}, seed {seed_of(one)}: {remark}."] if remark else []
    if "elbo" in columns and "elbo" in metrics:
        on = format_count(metrics["examples"], metrics["split"])
        notes.append(f"ELBO: nats per example, {on}, reconstruction: {metrics['likelihood']}.")
    if "fid.samples.score" in columns and (words := describe_fid(metrics)) is not None:
        notes.append(f"{words}.")
    if isinstance(one, ScoreFile):
        notes.append(f"{row.method}: {metrics['of']}, {one.describe()}.")
    elif row.preset is None:
        notes.append(describe_row(row.method, one, table.rows[0], runs))
    if row.preset is None:
        notes += describe_missing(row.method, metrics, table.columns)
    if isinstance(one, RunFolder):
        notes += _describe_ramp(row.method, one, metrics["step"])
    if (
        "factor_vae_score.score" in columns
        and look_up(metrics, "factor_vae_score.active_latents") == 0
    ):
        notes.append(
            f"{row.method}, seed {seed_of(one)}: no latent is in use, so its FactorVAE score is 0."
        )
    for event in one.events() if isinstance(one, RunFolder) else ():
        match event["event"]:
            case "target moved":
                notes.append(f"{row.method}, seed {seed_of(one)}: its target was moved by hand.")
            case "branched" if event["changed"]:
                other = " and ".join(event["changed"])
                notes.append(
                    f"{row.method}: up to step {event['step']:,} trained with another {other}."
                )
            case "diverged":
                notes.append(
                    f"{row.method}, seed {seed_of(one)}: diverged; measured at step {metrics['step']:,}."
                )
    return notes


def seed_of(one: Measured) -> int | str:
    """What tells it from others of its row."""
    return one.experiment().training.seed if isinstance(one, RunFolder) else one.path.name


def _describe_ramp(method: str, folder: RunFolder, step: int) -> list[str]:
    """Where a set point was still on its way: what it was."""
    target = getattr(folder.experiment().control, "target", None)
    moved = any(event["event"] == "target moved" for event in folder.events())
    if moved or not isinstance(target, Schedule) or isinstance(target, Cyclical):
        return []
    now, end = (float(target.at(float(at), FLOATS)) for at in (step, 1e15))
    return (
        [f"{method}: at step {step:,} its set point is {now:.3g} nats, on its way to {end:.3g}."]
        if now != end
        else []
    )


def describe_row(
    method: str, folder: RunFolder, first: Row, runs: Mapping[str, Sequence[Measured]]
) -> str:
    """How a method of a user's own differs from the first row's, trained or preset; of other data, what they are."""
    trained = [one for one in runs.get(first.key, ()) if isinstance(one, RunFolder)]
    other = _changed_settings(folder, trained[0].experiment() if trained else preset(first.key))
    name = first.method if trained else first.key
    words = f"{method} is {name} with another {', '.join(other) or 'name'}."
    if not any(path.partition(".")[0] == "data" for path in other):
        return words
    on, metrics = [describe_data(folder.experiment())], folder.metrics() or {}
    measured = metrics.get("ground_truth", metrics)  # scores may be of other examples than the ELBO
    if "examples" in measured:
        on.append(format_count(measured["examples"], measured["split"]))
    if "names" in measured:
        named = [
            f"{name} (no quantity)" if name in measured["unordered"] else name
            for name in measured["names"]
        ]
        on.append(f"factors {', '.join(named) or 'that do not vary'}")
    return f"{words} Its data: {', '.join(on)}."


def describe_missing(
    method: str, metrics: Mapping[str, Any], columns: Mapping[str, str]
) -> list[str]:
    """Why a method has a dash in some columns."""
    reasons: dict[str, list[str]] = {}
    for name, path in columns.items():
        if look_up(metrics, path) is None:
            reasons.setdefault(_why_missing(metrics, path), []).append(name)
    return [f"{method}, no {', '.join(names)}: {reason}." for reason, names in reasons.items()]


def _why_missing(metrics: Mapping[str, Any], path: str) -> str:
    """The reason that stands in the place of a number, or above it."""
    value: Any = metrics
    above = path.split(".")[:-1]
    for key in above:
        value = (
            value.get(key, {}) if isinstance(value, Mapping) and "skipped" not in value else value
        )
    if isinstance(value, Mapping) and "skipped" in value:
        return str(value["skipped"])
    return "not among its factors" if value and above[-1:] == ["per_factor"] else "not measured"


def _differences(folder: RunFolder, name: str) -> list[str]:
    """The settings in which a run differs from a preset, but for its seed."""
    return _changed_settings(folder, preset(name))


def _changed_settings(folder: RunFolder, other: Experiment) -> list[str]:
    wording = {"name", "about", "paper", "training.seed"}
    return [path for path in changed_fields(folder.experiment(), other) if path not in wording]


def _pair(mean: float, sd: float | None, digits: int) -> str:
    """`0.5628 ± 0.0222`, or `-372.10 ± 0.64`, or `6270 ± 41`."""
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if sd is not None else "")


def _digits(value: float) -> int:
    """Decimals that are not noise."""
    return 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 4
