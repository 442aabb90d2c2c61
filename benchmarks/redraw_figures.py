"""Redraw figures of the results pages from their CSV files, as PNG and SVG.

    python benchmarks/redraw_figures.py
    python benchmarks/redraw_figures.py settling figure-mig

settling     results/gains/settling: settling steps of each law on ten trainings
figure-mig   results/disentangling/figure-mig: MIG of every run against its reconstruction
figure-short results/disentangling/figure-short: the same after 150,000 steps
beginnings   results/disentangling/beginnings: KL of the largest latents at an early step
sweep-128    results/images/sweep-128: reconstruction, ELBO and FID against KL

The traces behind `results/gains` were not kept, so its figure shows settling steps. The figure of
the fresh seeds is drawn by `fresh_seeds_report.py`.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from figure_style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    VERMILION,
    new_figure,
    save_figure,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parents[1] / "results"
Row = dict[str, str]

LAWS = {
    "PI, ki 1e-3": (BLUE, "o"),
    "PI, ki 1e-4": (SKY, "s"),
    "Lagrange, 1e-3": (VERMILION, "^"),
    "Lagrange, 1e-4": (ORANGE, "D"),
    "Auto": (GREEN, "*"),
}
METHODS = {  # preset: label, colour, marker
    "shapes2d-control-16": ("ControlVAE, KL = 16", BLUE, "o"),
    "shapes2d-control-17": ("ControlVAE, KL = 17", BLUE, "^"),
    "shapes2d-control-18": ("ControlVAE, KL = 18", BLUE, "s"),
    "shapes2d-control-19": ("ControlVAE, KL = 19", BLUE, "D"),
    "shapes2d-control-16-step-0.05": ("KL = 16, ramp step 0.05", SKY, "o"),
    "shapes2d-control-16-step-0.1": ("KL = 16, ramp step 0.1", SKY, "^"),
    "shapes2d-control-16-step-0.2": ("KL = 16, ramp step 0.2", SKY, "s"),
    "shapes2d-weighted-18": ("KL = 18, per-latent weights*", GREEN, "o"),
    "shapes2d-staggered-18": ("KL = 18, staggered latents*", GREEN, "s"),
    "shapes2d-control-factor": ("Control-FactorVAE", VERMILION, "o"),
    "shapes2d-factor": ("FactorVAE", VERMILION, "s"),
    "shapes2d-beta-100": ("β-VAE", ORANGE, "o"),
    "shapes2d-beta-100-matched": ("β-VAE, equal terms", ORANGE, "s"),
}
SHORT_METHODS = {  # method: label, colour, marker
    "ControlVAE (target 16)": ("ControlVAE, β from 80", BLUE, "o"),
    "ControlVAE (target 16), β from 1": ("ControlVAE, β from 1", BLUE, "^"),
    "β(t) of the first row, replayed": ("its β(t), open loop", SKY, "s"),
    "β-VAE (β = 10.5, ControlVAE's mean)": ("its mean, β = 10.5", SKY, "v"),
    "Lagrange multiplier (target 16)": ("Lagrange multiplier", GREEN, "o"),
    "DynamicVAE (target 16)": ("DynamicVAE", GREEN, "D"),
    "β-VAE (γ = 100, target 16)": ("β-VAE, γ = 100", ORANGE, "s"),
    "β-VAE (β = 4)": ("β-VAE, β = 4", ORANGE, "o"),
    "β-TCVAE (β = 6)": ("β-TCVAE, β = 6", PINK, "o"),
    "VAE": ("VAE", GREY, "o"),
    "FactorVAE (γ = 10)": ("FactorVAE, γ = 10", VERMILION, "s"),
    "Control-FactorVAE (TC = 0.3)": ("Control-FactorVAE", VERMILION, "o"),
}
MIG = "mig_sampled.score"


def main() -> None:
    """Redraw the figures named on the command line, or all of them."""
    drawings: dict[str, Callable[[], None]] = {
        "settling": draw_settling,
        "figure-mig": draw_mig,
        "figure-short": draw_short,
        "beginnings": draw_beginnings,
        "sweep-128": draw_sweep,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *drawings], default=[])
    for name in parser.parse_args().names or drawings:
        drawings[name]()


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    with path.open() as file:
        return list(csv.DictReader(file))


def draw_settling() -> None:
    """Draw the settling step of each law and seed as a share of the training's length."""
    rows = read_rows(RESULTS / "gains" / "runs.csv")
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = new_figure(4.2, 1, 2, sharey=True)
    for axis, column, title in zip(
        axes[0],
        ("settled_to_5", "settled_to_2"),
        ("(a) within 5 % of the target", "(b) within 2 % of the target"),
        strict=True,
    ):
        for place, task in enumerate(tasks):
            draw_task(axis, place, [row for row in rows if row["task"] == task], column)
        axis.axvspan(1.1, 2.2, color="#eef1f2", lw=0, zorder=0)
        axis.text(1.56, -0.85, "never", ha="center", va="center", fontsize=6.5, color=GREY)
        axis.set(xscale="log", xlim=(0.004, 2.2), title=title)
        axis.set_xlabel("settling step / length of the training")
        axis.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
        axis.set_yticks(range(len(tasks)), tasks)
        axis.set_ylim(len(tasks) - 0.4, -1.2)
        for edge in range(1, len(tasks)):
            axis.axhline(edge - 0.5, color="#dde2e4", lw=0.6, zorder=0)
    for law, (colour, marker) in LAWS.items():
        axes[0, 0].scatter([], [], s=22, color=colour, marker=marker, lw=0, label=law)
    figure.legend(loc="outside lower center", ncols=5, handletextpad=0.1)
    save_figure(figure, RESULTS / "gains" / "settling")


def draw_task(axis: Axes, place: int, rows: list[Row], column: str) -> None:
    """Draw the seeds of every law on one training, in a separate band.

    Args:
        axis: Axes to draw on.
        place: Position of the training on the y axis.
        rows: Rows of this training.
        column: Column of the settling step, empty if a run did not settle.
    """
    for order, (law, (colour, marker)) in enumerate(LAWS.items()):
        own = [row for row in rows if row["law"] == law]
        height = place + 0.16 * (order - (len(LAWS) - 1) / 2)
        shares = [float(row[column]) / float(row["steps"]) for row in own if row[column]]
        unsettled = len(own) - len(shares)
        size = 22 if marker == "*" else 11
        style: dict[str, Any] = {
            "s": size,
            "color": colour,
            "marker": marker,
            "lw": 0,
            "alpha": 0.85,
        }
        axis.scatter(shares, [height] * len(shares), **style)
        never = np.geomspace(1.25, 1.95, 5)[:unsettled]
        axis.scatter(never, [height] * unsettled, **style)


def draw_mig() -> None:
    """Draw MIG against reconstruction at full length, and label the failed seed of KL = 16."""
    rows = read_rows(RESULTS / "disentangling" / "figure-mig.csv")
    figure, axis = draw_tradeoff(rows, METHODS, "preset")
    failed = min(rows, key=lambda row: float(row[MIG]))
    place = float(failed["reconstruction"]), float(failed[MIG])
    axis.annotate("failed seed of KL = 16", place, (8, -2), textcoords="offset points", color=GREY)
    axis.set_ylim(0.29, 0.65)
    save_figure(figure, RESULTS / "disentangling" / "figure-mig")


def draw_short() -> None:
    """Draw MIG against reconstruction after 150,000 steps on equal terms."""
    rows = read_rows(RESULTS / "disentangling" / "figure-short.csv")
    figure, axis = draw_tradeoff(rows, SHORT_METHODS, "method")
    axis.set_ylim(0, 0.62)
    save_figure(figure, RESULTS / "disentangling" / "figure-short")


def draw_tradeoff(
    rows: list[Row], methods: dict[str, tuple[str, str, str]], column: str
) -> tuple[Figure, Axes]:
    """Draw MIG against reconstruction: all runs, and the mean ± sd of each method.

    Args:
        rows: Rows of the CSV file.
        methods: Label, colour and marker by the value of `column`.
        column: Column that identifies a method.
    """
    figure, axes = new_figure(4.0)
    axis = axes[0, 0]
    for name, (label, colour, marker) in methods.items():
        own = [row for row in rows if row[column] == name]
        x = np.array([float(row["reconstruction"]) for row in own])
        y = np.array([float(row[MIG]) for row in own])
        axis.scatter(x, y, s=11, color=colour, marker=marker, alpha=0.45, lw=0)
        axis.errorbar(
            x.mean(),
            y.mean(),
            xerr=x.std(ddof=1),
            yerr=y.std(ddof=1),
            color=colour,
            marker=marker,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            elinewidth=0.8,
            label=label,
        )
    axis.set(xlabel="reconstruction loss (nats per image)", ylabel="MIG")
    axis.grid(color="#e6eaec", lw=0.5)
    axis.set_axisbelow(True)
    handles, labels = axis.get_legend_handles_labels()
    markers = [handle[0] for handle in handles]
    figure.legend(markers, labels, loc="outside lower center", ncols=4, columnspacing=1.2)
    return figure, axis


def draw_beginnings() -> None:
    """Draw the KL of the three largest latents of every seed, failed seeds shaded."""
    rows = read_rows(RESULTS / "disentangling" / "beginnings.csv")
    names = list(dict.fromkeys(row["beginning"] for row in rows))
    titles = (
        "(a) as published, step 100,000",
        "(b) staggered, step 100,000",
        "(c) staggered, β from 80, step 30,000",
    )
    figure, axes = new_figure(2.5, 1, 3, sharey=True, width_ratios=(1, 1, 1.6))
    for axis, name, title in zip(axes[0], names, titles, strict=True):
        own = [row for row in rows if row["beginning"] == name]
        seeds = np.array([int(row["seed"]) for row in own])
        for row in own:
            if float(row["least r2 of a position and its latent"]) < 0.9:
                seed = int(row["seed"])
                axis.axvspan(seed - 0.5, seed + 0.5, color=RED, alpha=0.16, lw=0)
        for latent, colour, marker in ((1, BLUE, "o"), (2, ORANGE, "s"), (3, GREEN, "^")):
            nats = [float(row[f"nats {latent}"]) for row in own]
            label = ("largest", "second", "third")[latent - 1] + " latent"
            axis.scatter(seeds, nats, s=9, color=colour, marker=marker, lw=0, label=label)
        axis.set(xlabel="seed", title=title, ylim=(-0.04, 1.55), xlim=(0, seeds.max() + 1))
    axes[0, 0].set_ylabel("KL of the latent (nats)")
    axes[0, 0].bar([0], [0], color=RED, alpha=0.16, label="failed seed (r² < 0.9)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    save_figure(figure, RESULTS / "disentangling" / "beginnings")


def draw_sweep() -> None:
    """Draw reconstruction, ELBO and FID on the test set against KL."""
    rows = read_rows(RESULTS / "images" / "sweep-128.csv")
    figure, axes = new_figure(2.5, 1, 3)
    styles = ((GREY, "X"), (SKY, "^"), (BLUE, "v"), (ORANGE, "s"), (PINK, "D"))
    panels = (
        ("reconstruction mean", "reconstruction (nats per image)", "(a) reconstruction"),
        ("elbo mean", "ELBO (nats per image)", "(b) ELBO"),
        ("fid mean", "FID of 10,000 samples", "(c) FID"),
    )
    for axis, (column, label, title) in zip(axes[0], panels, strict=True):
        for row, (colour, marker) in zip(rows, styles, strict=True):
            name = row["setting"].replace("target=", "target ")
            x, y = float(row["kl mean"]), float(row[column])
            axis.scatter(x, y, s=24, color=colour, marker=marker, lw=0, label=name, alpha=0.85)
        axis.set(xlabel="KL (nats per image)", ylabel=label, title=title)
        axis.grid(color="#e6eaec", lw=0.5)
        axis.set_axisbelow(True)
        axis.margins(0.12)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, handletextpad=0.2)
    save_figure(figure, RESULTS / "images" / "sweep-128")


if __name__ == "__main__":
    main()
