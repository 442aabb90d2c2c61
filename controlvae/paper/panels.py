"""What the figures of the paper have in common: how a panel looks, and what must be said of the runs behind it."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.evaluation.external_codes import ScoreFile
from controlvae.lab.evaluation.statistics import SeedStatistics
from controlvae.lab.plots.style import format_step_axis, line_style
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.paper.printed import PaperFigure, Row
from controlvae.paper.tables import Measured, describe_row, other_settings

Runs = Mapping[str, Sequence[RunFolder]]  # each method's seeds, by the key of its row

_WINDOW = 2_000  # steps averaged into a point
WIDTH = 7.16  # inches: two columns of a journal page
SMALL = 6.5  # points; what is in the figure, printed at that width
QUIET = "#55656f"


def window_of(paper: PaperFigure, runs: Runs) -> int:
    """Steps averaged into a point; where no run is that long, each line of the log is one."""
    found = [folder for row in paper.rows for folder in runs.get(row.key, [])]
    last = [record["step"] for folder in found if (record := folder.last_record()) is not None]
    return _WINDOW if max(last, default=_WINDOW) >= _WINDOW else 1


def describe_point(window: int) -> str:
    """What a point of a curve is."""
    return "a line of the log" if window == 1 else f"the mean of {window:,} steps"


def run_status_notes(
    paper: PaperFigure, runs: Mapping[str, Sequence[Measured]], least: int = 0
) -> list[str]:
    """What a reader of the figure must know: how many seeds came how far, or why there is nothing; settings apart."""
    alike: dict[str, list[str]] = defaultdict(list)
    for row in paper.rows:
        alike[_stands(row, runs, least)].append(row.method)
    named = {
        words: "all methods" if len(alike) == 1 else "; ".join(methods)
        for words, methods in alike.items()
    }
    came = [f"{methods}: {words}." for words, methods in named.items()]
    own = [(row.method, one) for row in paper.rows if row.preset is None for one in runs[row.key]]
    theirs = [
        describe_row(method, one, paper.rows[0], runs)
        for method, one in own
        if isinstance(one, RunFolder)
    ]
    return [*came, *other_settings(paper.rows, runs), *dict.fromkeys(theirs)]


def _stands(row: Row, runs: Mapping[str, Sequence[Measured]], least: int) -> str:
    found = runs.get(row.key, [])
    scored = [one for one in found if isinstance(one, ScoreFile)]
    trained = [one for one in found if isinstance(one, RunFolder)]
    of = "; ".join(dict.fromkeys(one.describe() for one in scored))
    words = (
        [f"scores of {len(scored)} file{'s' if len(scored) > 1 else ''} of codes ({of})"]
        if scored
        else []
    )
    words += [_trained(trained, least)] if trained else []
    return " and ".join(words) or "no runs yet"


def _trained(folders: Sequence[RunFolder], least: int) -> str:
    steps = [_step(folder) for folder in folders]
    goal = folders[0].experiment().training.steps
    count = f"{len(steps)} seed{'s' if len(steps) > 1 else ''}"
    reached = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,} to {max(steps):,}"
    diverged = [
        folder.experiment().training.seed
        for folder in folders
        if any(event["event"] == "diverged" for event in folder.events())
    ]
    words = f"{count}, {reached} of {goal:,} steps"
    short = f", too few to draw: a point takes {least:,}" if max(steps) < least else ""
    return words + short + (f", diverged: seed {', '.join(map(str, diverged))}" if diverged else "")


def _step(folder: RunFolder) -> int:
    """How far a run has come: its last checkpoint is often past its last log line."""
    return max(
        [
            latest_step(folder.checkpoints) or 0,
            *(record["step"] for record in folder.records()[-1:]),
        ]
    )


def panel_look(axis: Axes, letter: str) -> None:
    """The look of one panel of a printed figure."""
    axis.set_title(f"({letter}) {axis.get_title()}", loc="left", fontsize=7)
    axis.set_title("")
    format_step_axis(axis)
    axis.tick_params(labelsize=SMALL)
    axis.xaxis.label.set_fontsize(7)
    axis.yaxis.label.set_fontsize(7)


def legend_above(figure: Figure, axis: Axes, columns: int = 3) -> None:
    """One legend for all panels, of the methods drawn in this one."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=7
        )


def draw_band(
    axis: Axes, values: SeedStatistics, label: str, place: int, bottom: float = -np.inf
) -> None:
    """A method's mean over seeds and, shaded, its standard deviation; its place gives the colour.

    A logarithmic axis has a `bottom`, which a band that reaches below it is cut at.
    """
    alone = "." if len(values.steps) == 1 else ""  # a line of one point would not be seen
    axis.plot(
        values.steps, values.mean, label=label, linewidth=1.0, marker=alone, **line_style(place)
    )
    sd, colour = np.nan_to_num(values.sd), line_style(place)["color"]
    # The first steps may scatter by more than they are: without a bottom, a bar from edge to edge.
    told = (sd < np.abs(values.mean)) | (bottom > 0)
    shade = {"where": told, "color": colour, "alpha": 0.2, "linewidth": 0}
    axis.fill_between(values.steps, np.maximum(values.mean - sd, bottom), values.mean + sd, **shade)


def leave_empty(axis: Axes, words: str, square: bool = False) -> None:
    """A frame with the reason why nothing is in it."""
    axis.set(xticks=[], yticks=[], box_aspect=1 if square else None)
    axis.spines[:].set_color("#dde4e8")
    axis.text(
        0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes, fontsize=7, color=QUIET
    )


def say_below(figure: Figure, notes: Sequence[str], width: int = 165) -> None:
    """Notes below the panels, where they are cut out with the figure and not lost."""
    lines = [
        line
        for note in notes
        for line in textwrap.wrap(note.replace(" = ", "\u00a0=\u00a0"), width)
    ]
    figure.set_figheight(figure.get_figheight() + 0.09 * len(lines))
    figure.supxlabel("\n".join(lines), fontsize=5.5, color=QUIET, x=0.01, ha="left")
