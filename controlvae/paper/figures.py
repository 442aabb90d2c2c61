"""Figures of the paper drawn from run folders, each with the numbers behind it; what is missing is said on them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.evaluation.statistics import seed_statistics
from controlvae.lab.io import write_csv
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.style import line_style
from controlvae.lab.reports.notes import merge_notes
from controlvae.lab.runs.folder import RunFolder, look_up
from controlvae.paper.disentangling_figures import write_disentangling, write_traversals
from controlvae.paper.panels import (
    SMALL,
    WIDTH,
    Runs,
    describe_point,
    draw_band,
    leave_empty,
    legend_above,
    panel_look,
    run_status_notes,
    say_below,
    window_of,
)
from controlvae.paper.printed import Against, PaperFigure, Row
from controlvae.paper.tables import Measured, describe_missing, seed_of

_START = 0.1  # the share of a run whose first leaps need not be seen in full
_CURVES = {
    "elbo": "ELBO (nats per example)",
    "objective": "−(reconstruction + β · KL)",
    "reconstruction": "reconstruction (nats)",
    "kl": "KL (nats per example)",
    "beta": "weight β(t)",
    "validation": "ELBO, validation (nats)",
}
_MARKS = "osD^v<>dph"  # none that could be taken for the cross of a mean
_TWO_CURVES = (
    "{} is what training maximises, with the β of the moment; the released program plots it as the ELBO. A β below 1 "
    "flatters it, and it bounds nothing: methods are to be compared by {}, where β = 1."
)


def write_figure(
    paper: PaperFigure,
    measured: Mapping[str, Sequence[Measured]],
    out: Path,
    *,
    root: Path | None,
    device: torch.device,
) -> list[str]:
    """Draws a figure by its name and returns what must be said beside it. Where it needs runs, scores are left out."""
    if paper.against:
        return write_points(paper, paper.against, measured, out)
    runs = {
        key: [one for one in found if isinstance(one, RunFolder)] for key, found in measured.items()
    }
    match paper.name:
        case "figure-disentangling":
            return write_disentangling(paper, runs, out)
        case "figure-traversals":
            return write_traversals(paper, runs, out, root=root, device=device)
    if paper.curves:
        return write_curves(paper, runs, out)
    raise ValueError(f"no way to draw {paper.name!r}")


def write_curves(paper: PaperFigure, runs: Runs, out: Path) -> list[str]:
    """A panel for each column of the log, every method's mean and spread over seeds in it. `NAME.png`, `NAME.csv`."""
    window = window_of(paper, runs)
    notes = run_status_notes(paper, runs, least=window)
    tall = -(-len(paper.curves) // 3)
    figure = Figure(figsize=(WIDTH, 1.9 * tall + 0.4), layout="constrained")
    axes = figure.subplots(tall, 3, squeeze=False).flatten()
    lines: list[list[Any]] = []
    for axis in axes[len(paper.curves) :]:
        axis.axis("off")
    for axis, column, letter in zip(axes, paper.curves, "abcdef", strict=False):
        settled: list[float] = []
        for place, row in enumerate(paper.rows):
            values = seed_statistics(
                [_curve(folder, column) for folder in runs.get(row.key, [])], column, window
            )
            if not len(values.steps):
                continue
            draw_band(axis, values, row.method, place)
            settled += values.mean[values.steps > _START * values.steps[-1]].tolist()
            cells = zip(values.steps, values.seeds, values.mean, values.sd, strict=True)
            lines += [[row.method, row.preset, column, *cell] for cell in cells]
        if settled and column != "beta":
            _frame(axis, settled)
        if not axis.lines:
            leave_empty(axis, "nothing to draw yet")
        panel_look(axis, letter)
        axis.set_ylabel(_CURVES[column], fontsize=7)
    legend_above(figure, figure.axes[0])
    about = [
        f"A point is {describe_point(window)}, on training batches; line: mean over seeds, shade: ± sd. "
        "Panels are cut to what follows the first tenth of the steps."
    ]
    if "validation" in paper.curves:
        about.append(
            "Validation: examples that are not trained on, looked at while training goes on."
        )
    if {"elbo", "objective"} <= set(paper.curves):
        true, papers = (axes[paper.curves.index(column)] for column in ("elbo", "objective"))
        about.append(
            _TWO_CURVES.format(*(axis.get_title(loc="left").strip() for axis in (papers, true)))
        )
        both = [*true.get_ylim(), *papers.get_ylim()]
        for axis in (true, papers):  # one range: the eye may compare them
            axis.set_ylim(min(both), max(both))
    say_below(figure, [*about, *notes])
    save_figure(figure, out / f"{paper.name}.png")
    write_csv(
        out / f"{paper.name}.csv",
        ["method", "preset", "column", "step", "seeds", "mean", "sd"],
        lines,
    )
    return notes


def write_points(
    paper: PaperFigure, terms: Against, runs: Mapping[str, Sequence[Measured]], out: Path
) -> list[str]:
    """A point for every run, a cross for every method: mean and sd over its seeds. `NAME.png`, `NAME.csv`."""
    notes = run_status_notes(paper, runs)
    figure = Figure(figsize=(0.8 * WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    lines: list[list[Any]] = []
    estimators: list[tuple[str, str]] = []
    for place, row in enumerate(paper.rows):
        found = [(one, metrics) for one in runs.get(row.key, []) if (metrics := one.metrics())]
        notes += _not_drawn(
            row, len(runs.get(row.key, [])), [metrics for _, metrics in found], terms
        )
        scores = [metrics.get(terms.up.partition(".")[0], {}) for _, metrics in found]
        estimators += [
            (row.method, f"{score['estimator']}.") for score in scores if "estimator" in score
        ]
        points = [
            [row.method, row.preset, seed_of(one), metrics.get("step"), across, up]
            for one, metrics in found
            if (across := look_up(metrics, terms.across)) is not None
            and (up := look_up(metrics, terms.up)) is not None
        ]
        if not points:
            continue
        _draw_points(axis, np.array([line[-2:] for line in points], dtype=float), row.method, place)
        lines += points
    axis.set_xlabel(terms.labels[0], fontsize=7)
    axis.set_ylabel(terms.labels[1], fontsize=7)
    axis.tick_params(labelsize=SMALL)
    if not lines:
        leave_empty(axis, "nothing to draw yet")
    legend_above(figure, axis)
    about = f"Small: a run. Large, with a cross: the mean ± sd over seeds. {terms.reading}"
    say_below(figure, [about, *merge_notes(estimators), *notes], 130)
    save_figure(figure, out / f"{paper.name}.png")
    write_csv(
        out / f"{paper.name}.csv",
        ["method", "preset", "seed", "step", terms.across, terms.up],
        lines,
    )
    return notes


def _draw_points(axis: Axes, points: np.ndarray, label: str, place: int) -> None:
    """Runs (runs, 2), and their mean with a cross; a rim tells means apart that lie on each other."""
    colour, mark = line_style(place)["color"], _MARKS[place % len(_MARKS)]
    (across, up), (middle, height) = points.T, points.mean(0)
    axis.scatter(across, up, s=9, color=colour, marker=mark, alpha=0.5, linewidth=0)
    wide, tall = points.std(axis=0, ddof=1) if len(points) > 1 else (0.0, 0.0)
    rim: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    mean = axis.errorbar(
        middle,
        height,
        xerr=wide,
        yerr=tall,
        color=colour,
        linewidth=0.7,
        capsize=1.5,
        fmt=mark,
        label=label,
        zorder=3,
        **rim,
    )
    mean[0].set_zorder(4)  # above the crosses of all


def _not_drawn(
    row: Row, runs: int, measured: Sequence[Mapping[str, Any]], terms: Against
) -> list[str]:
    """Why runs of a method have no point."""
    if runs and not measured:
        return [f"{row.method}: not evaluated yet."]
    numbers = dict(zip(terms.labels, (terms.across, terms.up), strict=True))
    return list(
        dict.fromkeys(
            words for one in measured for words in describe_missing(row.method, one, numbers)
        )
    )


def _frame(axis: Axes, values: Sequence[float]) -> None:
    """Cuts a panel to these and a little more, where what it shows beside them would flatten all of them."""
    low, high = min(values), max(values)
    bottom, top = axis.get_ylim()
    margin = 0.1 * (high - low)
    if margin > 0:
        axis.set_ylim(max(bottom, low - margin), min(top, high + margin))


def _curve(folder: RunFolder, column: str) -> list[dict[str, Any]]:
    """The records that have this column: looks at validation examples, or lines of the log.

    What was maximised stands beside the ELBO it is at times mistaken for: a low weight flatters it.
    """
    if column == "validation":
        return [{"step": look["step"], column: look["elbo"]} for look in folder.validations()]
    return [
        {**r, "objective": -(r["reconstruction"] + r["beta"] * r["kl"])} for r in folder.records()
    ]
