"""Shared style of the figures: colours, line styles, axes and legends."""

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# The palette of Okabe and Ito, which colour-blind readers can tell apart. Its yellow is left out
# because it is too faint on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
QUIET_COLOUR = "#55656f"  # captions and reference lines
FAINT_COLOUR = "#9aa5ab"
_DASHES = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
_MAX_LEGEND_INSIDE = 4  # lines; a longer legend would cover the curves
_MAX_HALF_WIDTH_LABEL = 50  # characters that fit into half the width of a figure


def line_style(place: int) -> dict[str, Any]:
    """Return the colour and dashes of the line at a place in a plot.

    The dashes differ from line to line, so that a line stays visible under one that coincides
    with it. The latents of x and y often do.
    """
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": _DASHES[place % len(_DASHES)]}


def run_style(place: int) -> dict[str, Any]:
    """Return the colour and dashes of a run, solid while there are colours left.

    A dashed line marks a target, so runs are dashed only once all colours are used.
    """
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": _DASHES[place // len(COLOURS) % len(_DASHES)],
    }


def cycle_colours(count: int) -> list[str]:
    """Return `count` colours of the palette, repeating it where it is too short."""
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def make_step_figure(label: str) -> tuple[Figure, Axes]:
    """Create a figure of one plot against training steps, with `label` on its y axis."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.set_ylabel(label)
    format_step_axis(axis)
    return figure, axis


def format_step_axis(axis: Axes) -> None:
    """Give a plot against training steps its label, grid and number format."""
    axis.set_xlabel("training step")
    format_axis(axis)
    axis.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))


def format_axis(axis: Axes) -> None:
    """Hide the top and right spines and draw a faint grid below the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)


def set_log_scale(axis: Axes) -> None:
    """Make the y axis logarithmic, labelled with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())


def add_legend(figure: Figure, axis: Axes) -> None:
    """Add a legend: inside the plot for a few lines, above it in a taller figure for more."""
    handles, labels = axis.get_legend_handles_labels()
    if len(handles) <= _MAX_LEGEND_INSIDE:
        axis.legend(frameon=False)
        return
    columns = 2 if max(map(len, labels)) <= _MAX_HALF_WIDTH_LABEL else 1
    figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(handles) / columns))
    figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=8
    )


def peak_after_startup(values: np.ndarray) -> float:
    """Return the largest value after the first twentieth of a curve.

    A spike in the first steps must not flatten the rest of the plot.
    """
    late = values[len(values) // 20 :]
    return float(np.nanmax(late)) if np.isfinite(late).any() else 0.0
