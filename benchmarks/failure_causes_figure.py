"""The figure of `failure_causes_report.py`: S of the flagged seeds, their shares, and S by step."""

from collections.abc import Sequence
from pathlib import Path

from figure_style import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save_figure
from fresh_seeds_rules import MIN_SEPARATION
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from scipy import stats

COURSES = {"KL = 18": RED, "Adam's β₂ = 0.99": ORANGE, "N(0, 0.02) weights": BLUE}
COURSES |= {"latent weights": GREEN}
Values = dict[int, float]


def draw_figure(
    shown: dict[str, Values],
    courses: dict[str, dict[int, Values]],
    flagged: Sequence[int],
    path: Path,
) -> None:
    """Draw S of the flagged seeds, the share that is flagged again, and S against steps.

    Args:
        shown: S of each run by its seed, for every row of the figure.
        courses: S by step, by row and seed.
        flagged: Seeds that the label-free rule flags with KL = 18.
        path: Files to write, without suffix.
    """
    figure, axes = new_figure(3.1, 1, 3, width_ratios=(1.25, 0.8, 1))
    left, middle, right = axes[0]
    draw_matrix(left, shown, flagged)
    draw_shares(middle, shown, flagged)
    for label, colour in COURSES.items():
        for seed in flagged:
            course = courses[label][seed]
            steps = [step / 1_000 for step in course]
            right.plot(steps, list(course.values()), color=colour, lw=0.7, alpha=0.8)
        right.plot([], [], color=colour, lw=1.3, label=label)
    right.axhline(MIN_SEPARATION, color=GREY, lw=0.7, ls=":")
    right.set(xlim=(0, 60), ylim=(-0.02, 1.04), xlabel="training step (thousands)", ylabel="S")
    right.set_title("(c) S of the ten seeds")
    right.legend(loc="lower center", bbox_to_anchor=(0.45, -0.42), ncols=2, columnspacing=1)
    save_figure(figure, path)


def draw_matrix(axes: Axes, shown: dict[str, Values], flagged: Sequence[int]) -> None:
    """Draw S of every flagged seed in each row as a coloured cell.

    Args:
        axes: Axes to draw on.
        shown: S of each run by its seed, for every row.
        flagged: Seeds of the columns.
    """
    cells = [[values[seed] for seed in flagged] for values in shown.values()]
    colours = LinearSegmentedColormap.from_list("S", [RED, "#f7d9c8", "#ffffff"])
    axes.imshow(cells, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            weight = "bold" if value < MIN_SEPARATION else "normal"
            text = f"{value:.2f}".lstrip("0") if value < 0.995 else "1"
            style = {"fontsize": 5.6, "fontweight": weight}
            axes.text(column, row, text, ha="center", va="center", **style)
    axes.set_xticks(range(len(flagged)), [str(seed) for seed in flagged], fontsize=6, rotation=90)
    axes.set_yticks(range(len(shown)), list(shown), fontsize=6.5)
    axes.axhline(1.5, color="black", lw=0.8)
    axes.axhline(len(shown) - 2.5, color="black", lw=0.8)
    axes.tick_params(length=0)
    axes.set_title("(a) S at step 60,000; bold: flagged")
    axes.set_xlabel("seed flagged with KL = 18")


def draw_shares(axes: Axes, shown: dict[str, Values], flagged: Sequence[int]) -> None:
    """Draw the flagged share of the flagged seeds and of the others, with 95 % intervals.

    Args:
        axes: Axes to draw on.
        shown: S of each run by its seed, for every row.
        flagged: Seeds that the label-free rule flags with KL = 18.
    """
    for row, values in enumerate(shown.values()):
        ten = {seed: values[seed] for seed in flagged}
        others = {seed: value for seed, value in values.items() if seed not in ten}
        for group, shift, colour in ((ten, -0.17, RED), (others, 0.17, GREY)):
            if group:
                count = sum(value < MIN_SEPARATION for value in group.values())
                low, high = stats.binomtest(count, len(group)).proportion_ci(0.95, method="exact")
                axes.plot([low, high], [row + shift] * 2, color=colour, lw=1)
                axes.plot(count / len(group), row + shift, "o", color=colour, ms=3)
                text = f"{count}/{len(group)}"
                axes.text(1.04, row + shift, text, color=colour, va="center", fontsize=5.5)
    for place in (1.5, len(shown) - 2.5):
        axes.axhline(place, color="black", lw=0.8)
    axes.plot([], [], "o-", color=RED, ms=3, lw=1, label="the ten seeds")
    axes.plot([], [], "o-", color=GREY, ms=3, lw=1, label="others trained")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.42))
    axes.set(xlim=(-0.03, 1.2), ylim=(len(shown) - 0.5, -0.5), xlabel="flagged")
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes.set_yticks([])
    axes.set_title("(b) share flagged, 95 %")
