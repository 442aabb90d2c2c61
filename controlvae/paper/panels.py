"""Shared style of the paper's figures: panels, bands, legends and notes on the runs behind them."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.evaluation.external_codes import ScoreFile
from controlvae.lab.evaluation.statistics import SeedStatistics
from controlvae.lab.plots.style import format_step_axis, line_style
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.paper.measured import (
    MeasuredRun,
    describe_changed_settings,
    describe_custom_method,
)
from controlvae.paper.specs import PaperFigure, Row

RunsByKey = Mapping[str, Sequence[RunFolder]]  # seeds of each method, by the key of its row

WINDOW_STEPS = 2_000  # steps averaged into one point
FIGURE_WIDTH = 7.16  # inches: two columns of a journal page
LABEL_SIZE = 6.5  # points, at that width
NOTE_COLOUR = "#55656f"


def choose_window(figure: PaperFigure, runs: RunsByKey) -> int:
    """Return the steps averaged into one point, or 1 if no run is that long."""
    folders = [folder for row in figure.rows for folder in runs.get(row.key, [])]
    last = [record["step"] for folder in folders if (record := folder.last_record()) is not None]
    return WINDOW_STEPS if max(last, default=WINDOW_STEPS) >= WINDOW_STEPS else 1


def describe_point(window: int) -> str:
    """Describe what a point of a curve stands for."""
    return "a line of the log" if window == 1 else f"the mean of {window:,} steps"


def run_status_notes(
    figure: PaperFigure, runs: Mapping[str, Sequence[MeasuredRun]], least: int = 0
) -> list[str]:
    """Describe seeds and steps of each method, and settings that differ from the presets.

    Args:
        figure: Specification of the figure.
        runs: Seeds of each method, by the key of its row.
        least: Fewest steps that make a point.
    """
    methods_by_status: dict[str, list[str]] = defaultdict(list)
    for row in figure.rows:
        methods_by_status[_describe_status(row, runs, least)].append(row.method)
    shared = len(methods_by_status) == 1
    status = [
        f"{'all methods' if shared else '; '.join(methods)}: {text}."
        for text, methods in methods_by_status.items()
    ]
    custom = [
        describe_custom_method(row.method, run, figure.rows[0], runs)
        for row in figure.rows
        if row.preset is None
        for run in runs[row.key]
        if isinstance(run, RunFolder)
    ]
    return [*status, *describe_changed_settings(figure.rows, runs), *dict.fromkeys(custom)]


def _describe_status(row: Row, runs: Mapping[str, Sequence[MeasuredRun]], least: int) -> str:
    measured = runs.get(row.key, [])
    files = [run for run in measured if isinstance(run, ScoreFile)]
    folders = [run for run in measured if isinstance(run, RunFolder)]
    parts = []
    if files:
        sources = "; ".join(dict.fromkeys(file.describe() for file in files))
        plural = "s" if len(files) > 1 else ""
        parts.append(f"scores of {len(files)} file{plural} of codes ({sources})")
    if folders:
        parts.append(_describe_training(folders, least))
    return " and ".join(parts) or "no runs yet"


def _describe_training(folders: Sequence[RunFolder], least: int) -> str:
    steps = [_reached_step(folder) for folder in folders]
    goal = folders[0].experiment().training.steps
    low, high = min(steps), max(steps)
    reached = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    text = f"{len(steps)} seed{'s' if len(steps) > 1 else ''}, {reached} of {goal:,} steps"
    if high < least:
        text += f", too few to draw: a point takes {least:,}"
    diverged = [
        str(folder.experiment().training.seed)
        for folder in folders
        if any(event["event"] == "diverged" for event in folder.events())
    ]
    return text + (f", diverged: seed {', '.join(diverged)}" if diverged else "")


def _reached_step(folder: RunFolder) -> int:
    """Return the last step of a run. Its checkpoint is often later than its last log line."""
    logged = [record["step"] for record in folder.records()[-1:]]
    return max([latest_step(folder.checkpoints) or 0, *logged])


def style_panel(axis: Axes, letter: str) -> None:
    """Apply the style of a printed panel and add its letter to the title."""
    axis.set_title(f"({letter}) {axis.get_title()}", loc="left", fontsize=7)
    axis.set_title("")
    format_step_axis(axis)
    axis.tick_params(labelsize=LABEL_SIZE)
    axis.xaxis.label.set_fontsize(7)
    axis.yaxis.label.set_fontsize(7)


def add_legend_above(figure: Figure, axis: Axes, columns: int = 3) -> None:
    """Add one legend for all panels, with the methods drawn in `axis`.

    Args:
        figure: Figure to add the legend to.
        axis: Panel whose handles are shown.
        columns: Number of columns of the legend.
    """
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=7
        )


def draw_band(
    axis: Axes, values: SeedStatistics, label: str, place: int, bottom: float = -np.inf
) -> None:
    """Draw a method's mean over seeds with a band of one standard deviation.

    Args:
        axis: Panel to draw in.
        values: Mean and standard deviation by step.
        label: Name of the method.
        place: Index of the method, which selects its colour.
        bottom: Lower limit of a logarithmic axis, at which the band is cut.
    """
    marker = "." if len(values.steps) == 1 else ""  # a line of a single point is invisible
    style = line_style(place)
    axis.plot(values.steps, values.mean, label=label, linewidth=1.0, marker=marker, **style)
    sd = np.nan_to_num(values.sd)
    # In the first steps the deviation may exceed the mean, which would fill the whole panel.
    visible = (sd < np.abs(values.mean)) | (bottom > 0)
    shade = {"where": visible, "color": style["color"], "alpha": 0.2, "linewidth": 0}
    axis.fill_between(values.steps, np.maximum(values.mean - sd, bottom), values.mean + sd, **shade)


def draw_placeholder(axis: Axes, text: str, square: bool = False) -> None:
    """Draw an empty frame with the reason why nothing is in it.

    Args:
        axis: Panel to draw in.
        text: Reason.
        square: Give the panel equal sides.
    """
    axis.set(xticks=[], yticks=[], box_aspect=1 if square else None)
    axis.spines[:].set_color("#dde4e8")
    centre: dict[str, Any] = {"ha": "center", "va": "center", "transform": axis.transAxes}
    axis.text(0.5, 0.5, text, fontsize=7, color=NOTE_COLOUR, **centre)


def add_notes_below(figure: Figure, notes: Sequence[str], width: int = 165) -> None:
    """Add notes below the panels, inside the image file.

    Args:
        figure: Figure to add the notes to.
        notes: Sentences, one paragraph each.
        width: Characters per line.
    """
    lines = [
        line
        for note in notes
        for line in textwrap.wrap(note.replace(" = ", "\u00a0=\u00a0"), width)
    ]
    figure.set_figheight(figure.get_figheight() + 0.09 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=5.5, color=NOTE_COLOUR, x=0.01, ha="left")
