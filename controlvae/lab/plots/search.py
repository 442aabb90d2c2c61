"""Figures of a search: its history, its settings, and their importance."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.plots.style import (
    COLOURS,
    FAINT_COLOUR,
    QUIET_COLOUR,
    format_axis,
    make_step_figure,
)

_MAX_COLUMNS = 3
_COLOURS = "viridis"


def plot_history(
    numbers: Sequence[int], values: Sequence[float], label: str, better: str
) -> Figure:
    """Plot the value of every finished trial, and the best one so far.

    Args:
        numbers: Numbers of the finished trials, in order.
        values: Their values.
        label: Name and unit of the objective.
        better: Direction of the objective, "higher" or "lower".
    """
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axis = figure.subplots()
    accumulate = np.maximum.accumulate if better == "higher" else np.minimum.accumulate
    axis.scatter(numbers, values, s=18, color=COLOURS[0], label="a trial")
    axis.step(numbers, accumulate(values), where="post", color=COLOURS[1], label="best so far")
    axis.set(xlabel="trial", ylabel=label)
    axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    axis.legend(frameon=False, fontsize=8)
    format_axis(axis)
    return figure


def plot_slices(
    settings: Mapping[str, Sequence[Any]],
    values: Sequence[float],
    label: str,
    logarithmic: Sequence[str],
) -> Figure:
    """Plot the objective against each setting, a point per finished trial, later ones darker.

    Args:
        settings: Values of each setting, by its name.
        values: Values of the objective.
        label: Name and unit of the objective.
        logarithmic: Names of the settings that are drawn in the logarithm.
    """
    columns = min(_MAX_COLUMNS, len(settings))
    rows = -(-len(settings) // columns)
    size = (2.6 * columns + 0.8, 2.5 * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axis in axes[len(settings) :]:  # places of the grid that are left
        figure.delaxes(axis)
    for axis, (name, own) in zip(axes, settings.items(), strict=False):
        places, ticks = _places(own)
        axis.scatter(
            places, values, s=16, c=range(len(values)), cmap="Blues", vmin=-len(values) / 2
        )
        axis.set_xlabel(name)
        format_axis(axis)
        if ticks is not None:
            axis.set_xticks(range(len(ticks)), ticks, fontsize=8, rotation=30)
        elif name in logarithmic:
            axis.set_xscale("log")
    for axis in figure.axes[::columns]:
        axis.set_ylabel(label)
    return figure


def plot_parallel(
    settings: Mapping[str, Sequence[Any]],
    values: Sequence[float],
    label: str,
    logarithmic: Sequence[str],
    better: str,
) -> Figure:
    """Plot every finished trial as a line through its settings, coloured by the objective.

    The worst quarter has one colour.

    Args:
        settings: Values of each setting, by its name.
        values: Values of the objective.
        label: Name and unit of the objective.
        logarithmic: Names of the settings that are drawn in the logarithm.
        better: Direction of the objective, "higher" or "lower".
    """
    figure = Figure(figsize=(max(4.5, 1.5 * len(settings) + 2.4), 3.2), layout="constrained")
    axis = figure.subplots()
    scaled = []
    for place, (name, own) in enumerate(settings.items()):
        column, ends = _scale(own, name in logarithmic)
        scaled.append(column)
        for height, text in ends:
            axis.text(place - 0.04, height, text, ha="right", va="center", fontsize=7)
    lines = np.array(scaled)
    # A few hopeless trials must not take all of the colours.
    low, high = np.quantile(values, [0.25, 1.0] if better == "higher" else [0.0, 0.75])
    norm = mpl.colors.Normalize(low, high, clip=True)
    colours = mpl.colormaps[_COLOURS]
    for line, value in zip(lines.T, values, strict=True):
        axis.plot(range(len(settings)), line, color=colours(norm(value)), linewidth=1, alpha=0.8)
    axis.set_xticks(range(len(settings)), list(settings))
    axis.set_xlim(-0.5, len(settings) - 0.9)
    axis.set_yticks([])
    axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
    for place in range(len(settings)):
        axis.axvline(place, color=FAINT_COLOUR, linewidth=0.8)
    extend = "min" if better == "higher" else "max"
    figure.colorbar(
        mpl.cm.ScalarMappable(norm, colours), ax=axis, label=label, extend=extend, aspect=30
    )
    return figure


def plot_importances(importances: Mapping[str, float]) -> Figure:
    """Plot the importance of each setting as bars, the most important one on top."""
    figure = Figure(figsize=(5.4, 0.6 + 0.32 * len(importances)), layout="constrained")
    axis = figure.subplots()
    names = list(importances)[::-1]
    bars = axis.barh(names, [importances[name] for name in names], color=COLOURS[0], height=0.6)
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.set(xlabel="importance", xlim=(0, 1.1 * max(importances.values(), default=1.0)))
    format_axis(axis)
    return figure


def plot_validation_curves(
    curves: Mapping[int, tuple[Sequence[int], Sequence[float]]],
    column: str,
    best: int | None,
    stopped: Sequence[int],
) -> Figure:
    """Plot the validation curve of every trial.

    Args:
        curves: Steps and values by the number of the trial.
        column: Label of the values.
        best: Number of the best trial, which is highlighted.
        stopped: Numbers of the trials that were stopped early.
    """
    figure, axis = make_step_figure(column)
    for number, (steps, values) in curves.items():
        pruned = number in stopped
        axis.plot(steps, values, color=FAINT_COLOUR if pruned else COLOURS[5], linewidth=0.9)
        if pruned:
            axis.plot(steps[-1:], values[-1:], "x", color=QUIET_COLOUR, markersize=5)
    if best is not None and best in curves:
        axis.plot(*curves[best], color=COLOURS[1], linewidth=1.8, label=f"trial {best}, the best")
        axis.legend(frameon=False, fontsize=8)
    _limit_to_settled(axis, [values for _, values in curves.values()])
    return figure


def _limit_to_settled(axis: Axes, curves: Sequence[Sequence[float]]) -> None:
    """Leave out the first points of long curves: they lie far from all others."""
    late = [value for values in curves for value in (values[2:] if len(values) > 4 else values)]
    if late and (low := min(late)) < (high := max(late)):
        margin = 0.08 * (high - low)
        axis.set_ylim(low - margin, high + margin)


def _places(values: Sequence[Any]) -> tuple[list[float], list[str] | None]:
    """Return positions on an axis, and the labels of a choice."""
    if all(isinstance(value, int | float) for value in values):
        return [float(value) for value in values], None
    names = sorted({str(value) for value in values}, key=_sort_key)
    return [float(names.index(str(value))) for value in values], names


def _sort_key(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def _scale(values: Sequence[Any], is_log: bool) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Return values scaled to 0..1, and the labels of an axis with their heights."""
    places, ticks = _places(values)
    column = np.log(places) if is_log else np.array(places)
    low, high = column.min(), column.max()
    width = high - low or 1.0
    if ticks is not None:
        return (column - low) / width, [((n - low) / width, t) for n, t in enumerate(ticks)]
    ends = [(0.0, f"{min(places):.3g}"), (1.0, f"{max(places):.3g}")]
    return (column - low) / width, ends
