"""Style of the figures that are redrawn from committed CSV files: 7.16 inches wide, for print."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
BLUE, SKY, GREEN, ORANGE = "#0072b2", "#56b4e9", "#009e73", "#e69f00"
VERMILION, PINK, RED, GREY = "#d55e00", "#cc79a7", "#c0282d", "#6b7780"
WIDTH = 7.16  # inches: two columns of an IEEE page

STYLE: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "controlvae",
}


def new_figure(
    height: float, rows: int = 1, columns: int = 1, **settings: Any
) -> tuple[Figure, np.ndarray]:
    """Create a figure of full width and its axes as an array of rows and columns.

    Args:
        height: Height in inches.
        rows: Rows of axes.
        columns: Columns of axes.
        settings: Further arguments of `Figure.subplots`.
    """
    mpl.rcParams.update(STYLE)  # type: ignore[arg-type]
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **settings)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG and SVG next to each other; `path` has no suffix."""
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=200)
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
