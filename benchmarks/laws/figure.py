"""Figure of the suite: traces of every problem in small multiples."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laws.judge import LawOutcome
from laws.problem import BLOCKS_PER_WINDOW, Problem
from laws.store import load_traces

if TYPE_CHECKING:
    from laws.report import Comparison

COLUMNS = 6
COLOURS = {"published": "#6b7780", "oracle": "#e69f00", "auto": "#0072b2"}


def draw_comparisons(comparisons: Sequence["Comparison"], traces: Path, path: Path) -> None:
    """Draw the measurement of every problem under `Auto`, the oracle and the published gains.

    Args:
        comparisons: Comparisons to draw.
        traces: Folder of traces.
        path: Image file to write.
    """
    from matplotlib.figure import Figure

    rows = -(-len(comparisons) // COLUMNS)
    figure = Figure(figsize=(2.2 * COLUMNS, 1.7 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for each, axis in zip(comparisons, axes, strict=False):
        problem, steps = each.problem, _block_steps(each.problem)
        axis.plot(steps, problem.target_blocks(), color="black", linewidth=0.7, linestyle="--")
        for label, outcome in (
            ("published", each.published),
            ("oracle", each.oracle),
            ("auto", each.law),
        ):
            for row in _running_means(problem, outcome, traces):
                style = {"color": COLOURS[label], "linewidth": 0.6}
                axis.plot(steps[-len(row) :], row, **style)
        axis.set_title(problem.name, fontsize=7)
        axis.tick_params(labelsize=6)
        axis.set_ylim(*_limits(problem))
        if len(problem.phases) == 1:  # most of what happens, happens early
            axis.set_xscale("log")
    for axis in axes[len(comparisons) :]:
        axis.axis("off")
    lines = [figure.axes[0].plot([], [], color=colour)[0] for colour in COLOURS.values()]
    figure.legend(lines, list(COLOURS), loc="outside lower center", ncols=3, fontsize=7)
    figure.savefig(path, dpi=130)


def _block_steps(problem: Problem) -> np.ndarray:
    return np.arange(problem.stride, problem.steps + 1, problem.stride)


def _running_means(problem: Problem, outcome: LawOutcome | None, traces: Path) -> np.ndarray:
    """Return running means of every seed, or nothing without a stored trace."""
    if outcome is None:
        return np.empty((0, 0))
    stored = load_traces(traces / problem.name / f"{outcome.law.replace(' ', '_')}.npz")
    if stored is None:
        return np.empty((0, 0))
    kernel = np.full(BLOCKS_PER_WINDOW, 1 / BLOCKS_PER_WINDOW)
    return np.array([np.convolve(row, kernel, mode="valid") for row in stored.measured])


def _limits(problem: Problem) -> tuple[float, float]:
    targets = problem.target_blocks()
    margin = max(problem.target_scale(float(target)) for target in (targets.min(), targets.max()))
    return float(targets.min()) - margin, float(targets.max()) + margin
