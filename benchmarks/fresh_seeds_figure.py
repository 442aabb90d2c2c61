"""The figure of `fresh_seeds_report.py`: MIG of each seed, and the label-free statistic."""

from pathlib import Path

import numpy as np
from figure_style import BLUE, GREEN, GREY, ORANGE, RED, SKY, new_figure, save_figure
from matplotlib.axes import Axes

COLOURS = (BLUE, SKY, GREEN, ORANGE)
PURPLE, LIGHT_GREY = "#7b3f98", "#b8bec2"
Row = dict[str, str]
Course = dict[int, float]


def draw_figure(
    rows: list[Row],
    separations: list[Course],
    methods: dict[str, str],
    thresholds: tuple[float, float, int],
    path: Path,
) -> None:
    """Draw MIG of every run, S against MIG, and S against steps.

    Args:
        rows: Rows of `fresh-seeds.csv`.
        separations: S of each row by step.
        methods: Labels of the presets, in order.
        thresholds: Least S, least share of the median MIG, and the step of the rule.
        path: Files to write, without suffix.
    """
    min_separation, min_share, rule_step = thresholds
    figure, axes = new_figure(2.9, 1, 3, width_ratios=(1.15, 1, 1.05))
    left, middle, right = axes[0]
    for place, (preset, label) in enumerate(methods.items()):
        own = [row for row in rows if row["preset"] == preset]
        mig = np.array([float(row["mig"]) for row in own])
        failed = np.array([row["failed_mig"] == "1" for row in own])
        draw_scores(left, place, mig, failed, min_share)
        share = mig / np.median(mig)
        s = np.array([float(row["separation_60000"]) for row in own])
        dots = {"color": COLOURS[place], "alpha": 0.8, "lw": 0}
        middle.scatter(s[~failed], share[~failed], s=9, label=" ".join(label.split()), **dots)
        middle.scatter(s[failed], share[failed], s=16, color=COLOURS[place], marker="x", lw=1.1)
    left.set_xticks(range(len(methods)), list(methods.values()), fontsize=6.5)
    left.set(ylabel="MIG at step 100,000", ylim=(0, 0.28))
    left.set_title("(a) MIG of each seed")
    draw_thresholds(middle, min_separation, min_share)
    middle.scatter([], [], s=16, color="black", marker="x", lw=1.1, label="failed by MIG")
    middle.set(xlabel=f"S at step {rule_step:,}", ylabel="MIG / median of its method")
    middle.set(xlim=(-0.04, 1.04), ylim=(0, 1.12))
    middle.set_title("(b) separation S and MIG")
    draw_courses(right, rows, separations, tuple(methods)[:2])
    draw_thresholds(right, rule_step / 1_000, min_separation)
    right.set(xlabel="training step (thousands)", ylabel="S = (k₂ − k₃) / k₁")
    right.set(xlim=(0, 100), ylim=(-0.02, 1.04))
    right.set_title("(c) S during training")
    handles = [*middle.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, columnspacing=1.5)
    save_figure(figure, path)


def draw_scores(
    axes: Axes, place: int, mig: np.ndarray, failed: np.ndarray, min_share: float
) -> None:
    """Draw the MIG of all seeds of one method side by side, with its median and threshold.

    Args:
        axes: Axes to draw on.
        place: Position of the method on the x axis.
        mig: Score of each seed.
        failed: Mask of the failed seeds.
        min_share: Share of the median below which a seed fails.
    """
    across = place + spread_points(mig)
    axes.scatter(across[~failed], mig[~failed], s=6, color=COLOURS[place], alpha=0.8, lw=0)
    axes.scatter(across[failed], mig[failed], s=16, color=RED, marker="x", lw=1.1)
    median, ends = float(np.median(mig)), (place - 0.4, place + 0.4)
    axes.hlines(median, *ends, color="black", lw=0.8)
    axes.hlines(min_share * median, *ends, color=GREY, lw=0.7, ls=":")
    text = f"{failed.sum()} of {len(mig)}\nfailed"
    axes.text(place, 0.263, text, ha="center", va="center", fontsize=6)


def draw_thresholds(axes: Axes, x: float, y: float) -> None:
    """Draw a vertical and a horizontal threshold."""
    axes.axvline(x, color=GREY, lw=0.7, ls=":")
    axes.axhline(y, color=GREY, lw=0.7, ls=":")


def draw_courses(
    axes: Axes, rows: list[Row], separations: list[Course], presets: tuple[str, ...]
) -> None:
    """Draw S against steps for the runs of some presets, coloured by outcome.

    Args:
        axes: Axes to draw on.
        rows: Rows of the table.
        separations: S of each row by step.
        presets: Presets to draw.
    """
    outcomes = {  # (failed by MIG, flagged by S): colour, width, label
        ("0", "0"): (LIGHT_GREY, 0.4, "good"),
        ("0", "1"): (PURPLE, 1.0, "flagged, then good"),
        ("1", "1"): (RED, 0.8, "failed"),
        ("1", "0"): ("black", 1.0, "failed, not flagged"),
    }
    for order, (outcome, (colour, width, label)) in enumerate(outcomes.items()):
        chosen = [
            course
            for row, course in zip(rows, separations, strict=True)
            if row["preset"] in presets and (row["failed_mig"], row["failed_label_free"]) == outcome
        ]
        for course in chosen:
            steps = np.array(list(course)) / 1_000
            axes.plot(steps, list(course.values()), color=colour, lw=width, zorder=order + 1)
        if chosen:
            axes.plot([], [], color=colour, lw=1.3, label=f"(c) {label}, {len(chosen)} runs")


def spread_points(values: np.ndarray, half_width: float = 0.38) -> np.ndarray:
    """Return offsets across, so that points of nearly equal value do not overlap."""
    offsets, order = np.zeros(len(values)), np.argsort(values)
    choices = sorted(np.linspace(-half_width, half_width, 17), key=abs)
    for rank, point in enumerate(order):
        near = [offsets[k] for k in order[:rank] if abs(values[k] - values[point]) < 0.004]
        free = [x for x in choices if all(abs(x - other) > 0.04 for other in near)]
        offsets[point] = free[0] if free else choices[rank % len(choices)]
    return offsets
