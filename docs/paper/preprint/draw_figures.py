"""Draw the figures of the preprint from the committed result files.

    python docs/paper/preprint/draw_figures.py

writes four PDF files next to this script.
"""

import sys
from pathlib import Path

from committed import RESULTS, column, exact_interval, last_tenth, rows
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "benchmarks"))
from figure_style import BLUE, GREEN, GREY, ORANGE, RED, SKY, new_figure  # noqa: E402
from price_of_a_nat import plot_prices, read_pairs  # noqa: E402

FRESH, FULL = "disentangling/fresh-seeds.csv", "disentangling/fresh-seeds-full.csv"
OUTSIDE, SCORES = "disentangling/outside-seeds.csv", "disentangling/scores.csv"
PTB, PTB_LOG = "language/table-ptb.csv", "language/figure-ptb.csv"
PRESETS = {  # preset: label, colour
    "shapes2d-control-18": ("ControlVAE, KL = 18", BLUE),
    "shapes2d-staggered-18": ("staggered latents", GREEN),
    "shapes2d-beta-100-matched": ("β-VAE, equal terms", ORANGE),
}


def main() -> None:
    """Draw every figure."""
    for name, plot in FIGURES.items():
        plot().savefig(HERE / f"{name}.pdf", metadata={"CreationDate": None, "ModDate": None})


def plot_price() -> Figure:
    """Plot measured against predicted costs."""
    return plot_prices(read_pairs(RESULTS / "price" / "measured.csv"))


def plot_curves() -> Figure:
    """Plot the paper's curve and the ELBO of six methods on Penn Treebank."""
    figure, ((axis,),) = new_figure(2.1)
    names = {row["preset"]: row["method"] for row in rows(PTB)}
    order = sorted(names, key=lambda preset: last_tenth(PTB_LOG, preset, "objective"))
    for place, preset in enumerate(order):
        curve, elbo = (last_tenth(PTB_LOG, preset, name) for name in ("objective", "elbo"))
        colour = BLUE if preset.startswith("ptb-control") else GREY
        axis.plot([curve, elbo], [place, place], color=colour, linewidth=0.8)
        axis.scatter([curve], [place], s=28, facecolors="white", edgecolors=colour, zorder=3)
        axis.scatter([elbo], [place], s=28, color=colour, zorder=3)
    axis.set_yticks(range(len(order)), [names[preset] for preset in order])
    axis.set_xlabel("nats per sentence, training batches of the last tenth; right is better")
    axis.set_title("open: −(reconstruction + β·KL), as plotted by the paper; filled: ELBO")
    axis.margins(y=0.12)
    return figure


def plot_failures() -> Figure:
    """Plot failure rates with intervals, and MIG of every fresh seed at full length."""
    figure, ((left, right),) = new_figure(2.4, 1, 2)
    for place, (preset, (_, colour)) in enumerate(PRESETS.items()):
        failed = int(sum(column(FRESH, "failed_mig", preset=preset)))
        low, high = exact_interval(failed, 50)
        left.plot([low, high], [-place, -place], color=colour, linewidth=2)
        left.scatter([2 * failed], [-place], color=colour, s=30, zorder=3)
    left.set_yticks([0, -1, -2], [label for label, _ in PRESETS.values()])
    left.set_xlim(-1, 32)
    left.set_ylim(-2.5, 0.5)
    left.set_xlabel("failed, % of 50 fresh seeds (95 % interval)")
    left.set_title("failures by step 100,000")
    _draw_seeds(right)
    return figure


def _draw_seeds(axis: Axes) -> None:
    """Draw MIG of single seeds at full length: ours, fresh ones, and those trained elsewhere."""
    sets = (
        ("KL = 18\n1–5", SCORES, "MIG", {"run": "shapes2d-control-18"}, BLUE),
        ("301–310", FULL, "mig", {"preset": "shapes2d-control-18"}, BLUE),
        ("101–105", OUTSIDE, "MIG", {"preset": "shapes2d-control-18"}, BLUE),
        ("staggered\n1–5, tuned", SCORES, "MIG", {"run": "shapes2d-staggered-18"}, GREEN),
        ("301–306", FULL, "mig", {"preset": "shapes2d-staggered-18"}, GREEN),
        ("101–105", OUTSIDE, "MIG", {"preset": "shapes2d-staggered-18"}, GREEN),
    )
    for place, (_, path, name, wanted, colour) in enumerate(sets):
        values = column(path, name, **wanted)
        spread = [place + 0.24 * (n / max(1, len(values) - 1) - 0.5) for n in range(len(values))]
        axis.scatter(spread, values, s=13, color=colour, alpha=0.8, linewidths=0)
    axis.set_xticks(range(len(sets)), [label for label, *_ in sets], fontsize=6)
    axis.set_ylim(0, 0.7)
    axis.set_ylabel("MIG")
    axis.set_title("every seed at full length")


def plot_path() -> Figure:
    """Plot β(t) of KL = 18, and what MIG remains of its path without feedback."""
    figure, ((left, right),) = new_figure(2.2, 1, 2)
    log = [
        row
        for row in rows("disentangling/figure-disentangling.csv")
        if row["preset"] == "shapes2d-control-18"
    ]
    steps, beta = zip(*((int(r["step"]), float(r["weight mean"])) for r in log), strict=True)
    left.plot([step / 1e6 for step in steps], beta, color=BLUE, linewidth=1)
    left.set_yscale("log")
    left.set_xlabel("million steps")
    left.set_ylabel("β")
    left.set_title("weight that the controller finds, KL = 18")
    methods = {
        "ControlVAE (target 16)": ("controlled", BLUE),
        "β(t) of the first row, replayed": ("β(t) replayed\nopen loop", SKY),
        "ControlVAE (target 16), β from 1": ("controlled,\nβ from 1", GREY),
        "β-VAE (β = 10.5, ControlVAE's mean)": ("its mean,\nfixed", RED),
    }
    for place, (method, (_, colour)) in enumerate(methods.items()):
        values = column("disentangling/table-short.csv", "MIG", method=method)
        right.scatter([place] * len(values), values, s=14, color=colour, alpha=0.8, linewidths=0)
    right.set_xticks(range(len(methods)), [label for label, _ in methods.values()])
    right.set_ylim(0, 0.65)
    right.set_ylabel("MIG")
    right.set_title("five seeds each, 150,000 steps")
    return figure


FIGURES = {
    "price": plot_price,
    "ptb-curves": plot_curves,
    "failures": plot_failures,
    "path": plot_path,
}

if __name__ == "__main__":
    main()
