"""Write a figure of the paper from run folders, with the numbers behind it as a CSV file."""

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
from controlvae.paper.measured import MeasuredRun, describe_seed
from controlvae.paper.panels import (
    FIGURE_WIDTH,
    LABEL_SIZE,
    RunsByKey,
    add_legend_above,
    add_notes_below,
    choose_window,
    describe_point,
    draw_band,
    draw_placeholder,
    run_status_notes,
    style_panel,
)
from controlvae.paper.specs import PaperFigure, Row, ScatterAxes
from controlvae.paper.table_notes import describe_missing

_TRANSIENT_SHARE = 0.1  # share of a run whose first jumps may be cut off
_CURVE_LABELS = {
    "elbo": "ELBO (nats per example)",
    "objective": "−(reconstruction + β · KL)",
    "reconstruction": "reconstruction (nats)",
    "kl": "KL (nats per example)",
    "beta": "weight β(t)",
    "validation": "ELBO, validation (nats)",
}
_MARKERS = "osD^v<>dph"  # none that resembles the cross of a mean
_TWO_ELBOS = (
    "{objective} is what training maximises, with the current β; the released program plots it as "
    "the ELBO. A β below 1 raises it, and it is not a bound. Compare methods by {elbo}, with β = 1."
)


def write_figure(
    spec: PaperFigure,
    measured: Mapping[str, Sequence[MeasuredRun]],
    out: Path,
    *,
    root: Path | None,
    device: torch.device,
) -> list[str]:
    """Write `NAME.png`, `NAME.svg` and `NAME.csv`.

    Args:
        spec: Specification of the figure.
        measured: Seeds of each method, by the key of its row. Only scatter plots use score files.
        out: Folder to write to.
        root: Data folder, for figures that decode images.
        device: Device for the same.

    Returns:
        Notes on the runs behind the figure.
    """
    if spec.scatter:
        return write_scatter(spec, spec.scatter, measured, out)
    runs = {
        key: [run for run in found if isinstance(run, RunFolder)] for key, found in measured.items()
    }
    match spec.name:
        case "figure-disentangling":
            return write_disentangling(spec, runs, out)
        case "figure-traversals":
            return write_traversals(spec, runs, out, root=root, device=device)
    if spec.curves:
        return write_curves(spec, runs, out)
    raise ValueError(f"no writer for {spec.name!r}: give it curves or scatter axes")


def write_curves(spec: PaperFigure, runs: RunsByKey, out: Path) -> list[str]:
    """Draw one panel per log column, with mean and standard deviation over seeds.

    Args:
        spec: Specification of the figure.
        runs: Seeds of each method, by the key of its row.
        out: Folder to write to.

    Returns:
        Notes on the runs behind the figure.
    """
    window = choose_window(spec, runs)
    notes = run_status_notes(spec, runs, least=window)
    rows = -(-len(spec.curves) // 3)
    figure = Figure(figsize=(FIGURE_WIDTH, 1.9 * rows + 0.4), layout="constrained")
    axes = list(figure.subplots(rows, 3, squeeze=False).flatten())
    for axis in axes[len(spec.curves) :]:
        axis.axis("off")
    lines: list[list[Any]] = []
    for axis, column, letter in zip(axes, spec.curves, "abcdef", strict=False):
        lines += _draw_column(axis, column, spec, runs, window)
        style_panel(axis, letter)
        axis.set_ylabel(_CURVE_LABELS[column], fontsize=7)
    add_legend_above(figure, figure.axes[0])
    add_notes_below(figure, [*_describe_curves(spec, axes, window), *notes])
    save_figure(figure, out / f"{spec.name}.png")
    heads = ["method", "preset", "column", "step", "seeds", "mean", "sd"]
    write_csv(out / f"{spec.name}.csv", heads, lines)
    return notes


def _draw_column(
    axis: Axes, column: str, spec: PaperFigure, runs: RunsByKey, window: int
) -> list[list[Any]]:
    """Draw a log column of all methods in one panel and return the lines of the CSV file."""
    lines: list[list[Any]] = []
    settled: list[float] = []
    for place, row in enumerate(spec.rows):
        logs = [_read_column(folder, column) for folder in runs.get(row.key, [])]
        values = seed_statistics(logs, column, window)
        if not len(values.steps):
            continue
        draw_band(axis, values, row.method, place)
        settled += values.mean[values.steps > _TRANSIENT_SHARE * values.steps[-1]].tolist()
        cells = zip(values.steps, values.seeds, values.mean, values.sd, strict=True)
        lines += [[row.method, row.preset, column, *cell] for cell in cells]
    if settled and column != "beta":
        _crop_to(axis, settled)
    if not axis.lines:
        draw_placeholder(axis, "nothing to draw yet")
    return lines


def _describe_curves(spec: PaperFigure, axes: Sequence[Axes], window: int) -> list[str]:
    """Describe the panels, and give both kinds of ELBO the same range."""
    notes = [
        f"A point is {describe_point(window)}, on training batches. Line: mean over seeds; shade: "
        "± sd. Panels are cropped to what follows the first tenth of the steps."
    ]
    if "validation" in spec.curves:
        notes.append("Validation: examples that are not trained on.")
    if {"elbo", "objective"} <= set(spec.curves):
        panels = {name: axes[spec.curves.index(name)] for name in ("elbo", "objective")}
        titles = {name: axis.get_title(loc="left").strip() for name, axis in panels.items()}
        notes.append(_TWO_ELBOS.format(**titles))
        limits = [limit for axis in panels.values() for limit in axis.get_ylim()]
        for axis in panels.values():
            axis.set_ylim(min(limits), max(limits))
    return notes


def write_scatter(
    spec: PaperFigure,
    scatter: ScatterAxes,
    runs: Mapping[str, Sequence[MeasuredRun]],
    out: Path,
) -> list[str]:
    """Draw one point per run, and mean ± sd over the seeds of each method.

    Args:
        spec: Specification of the figure.
        scatter: Metrics to plot against each other.
        runs: Seeds of each method, by the key of its row.
        out: Folder to write to.

    Returns:
        Notes on the runs behind the figure.
    """
    notes = run_status_notes(spec, runs)
    figure = Figure(figsize=(0.8 * FIGURE_WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    lines: list[list[Any]] = []
    estimators: list[tuple[str, str]] = []
    for place, row in enumerate(spec.rows):
        seeds = runs.get(row.key, [])
        evaluated = [(run, metrics) for run in seeds if (metrics := run.metrics())]
        notes += _explain_missing_points(row, len(seeds), [m for _, m in evaluated], scatter)
        scores = [metrics.get(scatter.y.partition(".")[0], {}) for _, metrics in evaluated]
        estimators += [(row.method, f"{s['estimator']}.") for s in scores if "estimator" in s]
        points = [
            [row.method, row.preset, describe_seed(run), metrics.get("step"), x, y]
            for run, metrics in evaluated
            if (x := look_up(metrics, scatter.x)) is not None
            and (y := look_up(metrics, scatter.y)) is not None
        ]
        if points:
            positions = np.array([line[-2:] for line in points], dtype=float)
            _draw_points(axis, positions, row.method, place)
            lines += points
    axis.set_xlabel(scatter.labels[0], fontsize=7)
    axis.set_ylabel(scatter.labels[1], fontsize=7)
    axis.tick_params(labelsize=LABEL_SIZE)
    if not lines:
        draw_placeholder(axis, "nothing to draw yet")
    add_legend_above(figure, axis)
    about = f"Small: a run. Large, with a cross: mean ± sd over seeds. {scatter.reading}"
    add_notes_below(figure, [about, *merge_notes(estimators), *notes], 130)
    save_figure(figure, out / f"{spec.name}.png")
    heads = ["method", "preset", "seed", "step", scatter.x, scatter.y]
    write_csv(out / f"{spec.name}.csv", heads, lines)
    return notes


def _draw_points(axis: Axes, points: np.ndarray, label: str, place: int) -> None:
    """Draw runs (runs, 2) and their mean with error bars; a rim separates overlapping means."""
    colour, marker = line_style(place)["color"], _MARKERS[place % len(_MARKERS)]
    x, y = points.T
    axis.scatter(x, y, s=9, color=colour, marker=marker, alpha=0.5, linewidth=0)
    x_sd, y_sd = points.std(axis=0, ddof=1) if len(points) > 1 else (0.0, 0.0)
    rim: dict[str, Any] = {"markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    bars: dict[str, Any] = {"linewidth": 0.7, "capsize": 1.5, "fmt": marker, "zorder": 3}
    style: dict[str, Any] = {"color": colour, "label": label, **bars, **rim}
    x_mean, y_mean = points.mean(0)
    mean = axis.errorbar(x_mean, y_mean, xerr=x_sd, yerr=y_sd, **style)
    mean[0].set_zorder(4)  # above the error bars of all methods


def _explain_missing_points(
    row: Row, runs: int, metrics: Sequence[Mapping[str, Any]], scatter: ScatterAxes
) -> list[str]:
    if runs and not metrics:
        return [f"{row.method}: not evaluated yet."]
    columns = dict(zip(scatter.labels, (scatter.x, scatter.y), strict=True))
    reasons = [text for one in metrics for text in describe_missing(row.method, one, columns)]
    return list(dict.fromkeys(reasons))


def _crop_to(axis: Axes, values: Sequence[float]) -> None:
    """Crop a panel to the range of these values, plus a margin."""
    low, high = min(values), max(values)
    bottom, top = axis.get_ylim()
    margin = 0.1 * (high - low)
    if margin > 0:
        axis.set_ylim(max(bottom, low - margin), min(top, high + margin))


def _read_column(folder: RunFolder, column: str) -> list[dict[str, Any]]:
    """Return the records that have this column, from the validation file or the log.

    `objective` is the quantity that training maximises, which the paper plots as the ELBO.
    """
    if column == "validation":
        return [{"step": record["step"], column: record["elbo"]} for record in folder.validations()]
    return [
        {**r, "objective": -(r["reconstruction"] + r["beta"] * r["kl"])} for r in folder.records()
    ]
