"""Figures of the paper drawn from run folders, each with the numbers behind it; what is missing is said on them."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.control import Capacity
from controlvae.errors import UserError
from controlvae.experiments import RunFolder
from controlvae.experiments.folder import look_up, write_csv
from controlvae.experiments.paper import Against, PaperFigure, Row
from controlvae.report.figures import HELD, Trace, draw_latents, log_scale, look, step_axis
from controlvae.report.information import latent_factors
from controlvae.report.pictures import save_figure
from controlvae.report.spread import Spread, spread
from controlvae.report.tables import own_words
from controlvae.report.trained import open_run
from controlvae.report.traversal import draw_traversal, traverse
from controlvae.training.checkpoint import latest_step

Runs = Mapping[str, Sequence[RunFolder]]  # each method's seeds, by the key of its row

WINDOW = 2_000  # steps averaged into a point
_WIDTH = 7.16  # inches: two columns of a journal page
_START = 0.1  # the share of a run whose first leaps need not be seen in full
_SMALL = 6.5  # points; what is in the figure, printed at that width
_QUIET = "#55656f"
_CURVES = {
    "elbo": "ELBO (nats per example)",
    "objective": "−(reconstruction + β · KL)",
    "reconstruction": "reconstruction (nats)",
    "kl": "KL (nats per example)",
    "beta": "weight β(t)",
    "validation": "ELBO, validation (nats)",
}
_MARKS = "osD^vP*X"
_TWO_CURVES = (
    "{} is what training maximises, with the β of the moment; the released program plots it as the ELBO. A β below 1 "
    "flatters it, and it bounds nothing: methods are to be compared by {}, where β = 1."
)


def write_figure(paper: PaperFigure, runs: Runs, out: Path, *, root: Path | None, device: torch.device) -> list[str]:
    """Draws a figure by its name and returns what must be said beside it."""
    match paper.name:
        case "figure-disentangling":
            return write_disentangling(paper, runs, out)
        case "figure-traversals":
            return write_traversals(paper, runs, out, root=root, device=device)
    if paper.curves:
        return write_curves(paper, runs, out)
    if paper.against:
        return write_points(paper, paper.against, runs, out)
    raise ValueError(f"no way to draw {paper.name!r}")


def write_curves(paper: PaperFigure, runs: Runs, out: Path) -> list[str]:
    """A panel for each column of the log, every method's mean and spread over seeds in it. `NAME.png`, `NAME.csv`."""
    notes = standing(paper, runs, least=WINDOW)
    tall = -(-len(paper.curves) // 3)
    figure = Figure(figsize=(_WIDTH, 1.9 * tall + 0.4), layout="constrained")
    axes = figure.subplots(tall, 3, squeeze=False).flatten()
    lines: list[list[Any]] = []
    for axis in axes[len(paper.curves) :]:
        axis.axis("off")
    for axis, column, letter in zip(axes, paper.curves, "abcdef", strict=False):
        settled: list[float] = []
        for place, row in enumerate(paper.rows):
            values = spread([_curve(folder, column) for folder in runs.get(row.key, [])], column, WINDOW)
            if not len(values.steps):
                continue
            _band(axis, values, row.method, place)
            settled += values.mean[values.steps > _START * values.steps[-1]].tolist()
            cells = zip(values.steps, values.seeds, values.mean, values.sd, strict=True)
            lines += [[row.method, row.preset, column, *cell] for cell in cells]
        if settled and column != "beta":
            _frame(axis, settled)
        _panel(axis, letter)
        axis.set_ylabel(_CURVES[column], fontsize=7)
    _legend(figure, figure.axes[0])
    about = [
        f"A point is the mean of {WINDOW:,} steps on training batches; line: mean over seeds, shade: ± sd. "
        "Panels are cut to what follows the first tenth of the steps."
    ]
    if "validation" in paper.curves:
        about.append("Validation: examples that are not trained on, looked at while training goes on.")
    if {"elbo", "objective"} <= set(paper.curves):
        true, papers = (axes[paper.curves.index(column)] for column in ("elbo", "objective"))
        about.append(_TWO_CURVES.format(*(axis.get_title(loc="left").strip() for axis in (papers, true))))
        both = [*true.get_ylim(), *papers.get_ylim()]
        for axis in (true, papers):  # one range: the eye may compare them
            axis.set_ylim(min(both), max(both))
    _say(figure, [*about, *notes])
    save_figure(figure, out / f"{paper.name}.png")
    write_csv(out / f"{paper.name}.csv", ["method", "preset", "column", "step", "seeds", "mean", "sd"], lines)
    return notes


def write_points(paper: PaperFigure, terms: Against, runs: Runs, out: Path) -> list[str]:
    """A point for every run, a cross for every method: mean and sd over its seeds. `NAME.png`, `NAME.csv`."""
    notes = standing(paper, runs)
    own = [(row.method, folder) for row in paper.rows if row.preset is None for folder in runs[row.key][:1]]
    notes += [own_words(method, folder, paper.rows[0].key) for method, folder in own]
    figure = Figure(figsize=(0.62 * _WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    lines: list[list[Any]] = []
    for place, row in enumerate(paper.rows):
        found = [(folder, metrics) for folder in runs.get(row.key, []) if (metrics := folder.metrics())]
        points = [
            [row.method, row.preset, folder.experiment().training.seed, metrics["step"], across, up]
            for folder, metrics in found
            if (across := look_up(metrics, terms.across)) is not None and (up := look_up(metrics, terms.up)) is not None
        ]
        if not points:
            continue
        (x, y), colour = np.array([line[-2:] for line in points], dtype=float).T, look(place)["color"]
        axis.scatter(x, y, s=14, color=colour, marker=_MARKS[place % len(_MARKS)], alpha=0.6, label=row.method)
        wide, tall = (values.std(ddof=1) if len(points) > 1 else 0.0 for values in (x, y))
        axis.errorbar(x.mean(), y.mean(), xerr=wide, yerr=tall, color=colour, linewidth=1.0, capsize=2)
        lines += points
    axis.set_xlabel(terms.labels[0], fontsize=7)
    axis.set_ylabel(terms.labels[1], fontsize=7)
    axis.tick_params(labelsize=_SMALL)
    _legend(figure, axis, columns=2)
    _say(figure, [f"A point is a run, a cross the mean ± sd over seeds. {terms.reading}", *notes], 100)
    save_figure(figure, out / f"{paper.name}.png")
    write_csv(out / f"{paper.name}.csv", ["method", "preset", "seed", "step", terms.across, terms.up], lines)
    return notes


def write_disentangling(paper: PaperFigure, runs: Runs, out: Path) -> list[str]:
    """(a) reconstruction and (b) weight against steps, mean and spread over seeds; (c) KL per latent of one run.

    Writes `NAME.png`, `NAME.csv` for (a) and (b), `NAME-latents.csv` for (c), and returns what must be said.
    """
    notes = standing(paper, runs, least=WINDOW)
    figure = Figure(figsize=(_WIDTH, 2.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    notes += _draw_methods(paper, runs, left, middle, out)
    left.set_ylabel("reconstruction (nats per example)")
    middle.set_ylabel("weight β(t)")
    notes += _draw_example(paper, runs, right, out)
    right.set_ylabel("KL per latent (nats)")
    for axis, letter in zip((left, middle, right), "abc", strict=True):
        _panel(axis, letter)
    _legend(figure, left)
    _say(figure, [f"(a), (b): a point is the mean of {WINDOW:,} steps; line: mean over seeds, shade: ± sd.", *notes])
    save_figure(figure, out / f"{paper.name}.png")
    return notes


def _frame(axis: Axes, values: Sequence[float]) -> None:
    """Cuts a panel to these and a little more, where what it shows beside them would flatten all of them."""
    low, high = min(values), max(values)
    bottom, top = axis.get_ylim()
    margin = 0.1 * (high - low)
    axis.set_ylim(max(bottom, low - margin), min(top, high + margin))


def _curve(folder: RunFolder, column: str) -> list[dict[str, Any]]:
    """The records that have this column: looks at validation examples, or lines of the log.

    What was maximised stands beside the ELBO it is at times mistaken for: a low weight flatters it.
    """
    if column == "validation":
        return [{"step": look["step"], column: look["elbo"]} for look in folder.validations()]
    return [{**r, "objective": -(r["reconstruction"] + r["beta"] * r["kl"])} for r in folder.records()]


def _panel(axis: Axes, letter: str) -> None:
    """The look of one panel of a printed figure."""
    axis.set_title(f"({letter}) {axis.get_title()}", loc="left", fontsize=7)
    axis.set_title("")
    step_axis(axis)
    axis.tick_params(labelsize=_SMALL)
    axis.xaxis.label.set_fontsize(7)
    axis.yaxis.label.set_fontsize(7)


def _legend(figure: Figure, axis: Axes, columns: int = 3) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=7)


def write_traversals(
    paper: PaperFigure, runs: Runs, out: Path, *, image: str = "heart", root: Path | None, device: torch.device
) -> list[str]:
    """A traversal of each method: of the seed with the median MIG, neither the best nor the worst.

    Writes `NAME.png` and, with latent, KL and factor of every row, `NAME.csv`; returns what must be said.
    """
    notes = standing(paper, runs)
    columns = len(paper.rows) // 2 + 1  # one more than methods, for words
    figure = Figure(figsize=(_WIDTH * columns / 3, 4.8), layout="constrained")
    axes = figure.subplots(2, columns).flatten()
    lines: list[list[Any]] = []
    for axis, row in zip(axes, paper.rows, strict=False):
        axis.set_title(row.method, fontsize=7.5)
        folder = typical([f for f in runs.get(row.key, []) if latest_step(f.checkpoints) is not None])
        if folder is None:
            _empty(axis, "nothing to show yet", square=True)
            continue
        try:
            run = open_run(folder, root=root, device=device)
            shown = traverse(run, image, np.linspace(-3, 3, 10))
        except UserError as error:  # a damaged checkpoint or a run on other data leaves the other panels whole
            notes.append(f"{row.method}: {error}.")
            _empty(axis, "cannot be shown", square=True)
            continue
        draw_traversal(axis, shown, fontsize=5.2, stacked=True, every=3)
        seed = run.experiment.training.seed
        axis.set_xlabel(f"seed {seed}, step {run.step:,}", fontsize=5.5, color=_QUIET)
        lines += [
            [row.method, row.preset, seed, run.step, place, latent + 1, kl, _factor(shown.factors, latent)]
            for place, (latent, kl) in enumerate(zip(shown.latents, shown.kl, strict=True), start=1)
        ]
    about = (
        f"All start from the code of one picture, a {image}. Rows: a latent, the factor it tells most about, its KL. "
        "Columns: its value. The seed is the one of the median MIG; the first where none is evaluated."
    )
    for axis in axes[len(paper.rows) :]:
        axis.axis("off")
    words = "\n\n".join(textwrap.fill(note, 46) for note in [about, *notes])
    said = axes[-1].text(0, 1, words, va="top", transform=axes[-1].transAxes, fontsize=5.5, color=_QUIET)
    said.set_in_layout(False)
    save_figure(figure, out / f"{paper.name}.png")
    write_csv(out / f"{paper.name}.csv", ["method", "preset", "seed", "step", "row", "latent", "kl", "factor"], lines)
    return notes


def standing(paper: PaperFigure, runs: Runs, least: int = 0) -> list[str]:
    """Of every method what a reader of the figure must know: how many seeds came how far, or why there is nothing."""
    alike: dict[str, list[str]] = defaultdict(list)
    for row in paper.rows:
        alike[_stands(row, runs, least)].append(row.method)
    named = {words: "all methods" if len(alike) == 1 else "; ".join(methods) for words, methods in alike.items()}
    return [f"{methods}: {words}." for words, methods in named.items()]


def typical(folders: Sequence[RunFolder]) -> RunFolder | None:
    """The seed whose MIG is the (lower) median, or the first where none is evaluated."""
    scored = [(metrics["mig_sampled"]["score"], place) for place, folder in enumerate(folders)
              if (metrics := folder.metrics()) and "mig_sampled" in metrics]  # fmt: skip
    if scored:
        return folders[sorted(scored)[(len(scored) - 1) // 2][1]]
    return folders[0] if folders else None


def _stands(row: Row, runs: Runs, least: int) -> str:
    if not runs.get(row.key):
        return "no runs yet"
    steps = [_step(folder) for folder in runs[row.key]]
    goal = runs[row.key][0].experiment().training.steps
    count = f"{len(steps)} seed{'s' if len(steps) > 1 else ''}"
    reached = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    diverged = [folder.experiment().training.seed for folder in runs[row.key]
                if any(event["event"] == "diverged" for event in folder.events())]  # fmt: skip
    words = f"{count}, {reached} of {goal:,} steps"
    short = ", too few to draw" if max(steps) < least else ""
    return words + short + (f", diverged: seed {', '.join(map(str, diverged))}" if diverged else "")


def _step(folder: RunFolder) -> int:
    """How far a run has come: its last checkpoint is often past its last log line."""
    return max([latest_step(folder.checkpoints) or 0, *(record["step"] for record in folder.records()[-1:])])


def _draw_methods(paper: PaperFigure, runs: Runs, left: Axes, middle: Axes, out: Path) -> list[str]:
    """Every method's two curves, and the sheet of both; says whose weight is not that of the KL."""
    lines: list[list[Any]] = []
    notes, lowest = [], np.inf
    for place, row in enumerate(paper.rows):  # a method keeps its colour whoever else is missing
        folders = runs.get(row.key, [])
        logs = [records for folder in folders if (records := folder.records())]
        reconstruction, weight = spread(logs, "reconstruction", WINDOW), spread(logs, "beta", WINDOW)
        if not len(weight.steps):
            continue
        held, law = Trace(row.method, logs[0]).held, folders[0].experiment().control
        if isinstance(law, Capacity):  # as the paper draws it; the log has the mean of a sign that flips all the time
            weight = replace(weight, mean=np.full_like(weight.mean, law.gamma), sd=np.zeros_like(weight.sd))
            notes.append(f"(b): the weight of {row.method} is γ, that of |KL − C|; its KL is weighed by +γ or −γ.")
        elif held != "kl":
            notes.append(f"(b): the weight of {row.method} is that of the {HELD[held]}.")
        _band(left, reconstruction, row.method, place)
        _band(middle, weight, row.method, place)
        lowest = min(lowest, weight.mean.min())
        columns = zip(
            weight.steps, weight.seeds, reconstruction.mean, reconstruction.sd, weight.mean, weight.sd, strict=True
        )
        lines += [[row.method, row.preset, held, *values] for values in columns]
    if lines:
        log_scale(left)
    if lines and lowest > 0:
        log_scale(middle)
        middle.set_ylim(bottom=0.7 * lowest)  # a band that goes below zero would take the axis with it
    heads = ["step", "seeds", "reconstruction mean", "reconstruction sd", "weight mean", "weight sd"]
    write_csv(out / f"{paper.name}.csv", ["method", "preset", "held", *heads], lines)
    return notes


def _band(axis: Axes, values: Spread, label: str, place: int) -> None:
    axis.plot(values.steps, values.mean, label=label, linewidth=1.0, **look(place))
    sd, colour = np.nan_to_num(values.sd), look(place)["color"]
    axis.fill_between(values.steps, values.mean - sd, values.mean + sd, color=colour, alpha=0.2, linewidth=0)


def _draw_example(paper: PaperFigure, runs: Runs, axis: Axes, out: Path) -> list[str]:
    """The latents of one run one by one, and their sheet; says which run, or that there is none."""
    method = next(row.method for row in paper.rows if row.preset == paper.latents_of)
    folder = typical([folder for folder in runs.get(paper.latents_of, []) if folder.records()])
    axis.set_title(method)
    if folder is None:
        _empty(axis, "no log")
        write_csv(out / f"{paper.name}-latents.csv", ["step", "target"], [])
        return [f"(c): no log of {method}."]
    records, factors = folder.records(), latent_factors(folder.metrics())
    draw_latents(axis, Trace(method, records), factors, linewidth=1.0)
    axis.set_ylim(top=1.25 * axis.get_ylim()[1])  # room for the legend
    axis.legend(frameon=False, fontsize=5.5, loc="upper left", ncols=2, handlelength=1.6, columnspacing=0.8,
                labelspacing=0.25, borderaxespad=0)  # fmt: skip
    latents = range(len(records[0]["kl_per_latent"]))
    names = [f"z{latent + 1} {_factor(factors, latent)}".strip() for latent in latents]
    lines = [[record["step"], record["target"], *record["kl_per_latent"]] for record in records]
    write_csv(out / f"{paper.name}-latents.csv", ["step", "target", *names], lines)
    named = f", latents named by the factor they tell most about at step {folder.evaluated_step():,}" if factors else ""
    return [f"(c): {method}, seed {folder.experiment().training.seed}, the seed of the median MIG{named}."]


def _empty(axis: Axes, words: str, square: bool = False) -> None:
    axis.set(xticks=[], yticks=[], box_aspect=1 if square else None)
    axis.spines[:].set_color("#dde4e8")
    axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes, fontsize=7, color=_QUIET)


def _say(figure: Figure, notes: Sequence[str], width: int = 165) -> None:
    """Notes below the panels, where they are cut out with the figure and not lost."""
    lines = [line for note in notes for line in textwrap.wrap(note, width)]
    figure.set_figheight(figure.get_figheight() + 0.09 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=5.5, color=_QUIET, x=0.01, ha="left")


def _factor(factors: Sequence[str | None], latent: int) -> str:
    return (factors[latent] if factors else None) or ""
