"""Figures 3 and 4: how reconstruction, weight and latents move in training, and what each latent does."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.errors import UserError
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.evaluation.statistics import SeedStatistics, seed_statistics
from controlvae.lab.io import write_csv
from controlvae.lab.plots.curves import RunTrace, draw_latent_kl
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.mutual_information import (
    MIN_INFORMATION,
    describe_dominant_factor,
    dominant_factors,
)
from controlvae.lab.plots.style import set_log_scale
from controlvae.lab.plots.traversal import draw_traversal, has_all_shapes, traverse_latents
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import load_run
from controlvae.laws import Capacity
from controlvae.paper.panels import (
    QUIET,
    WIDTH,
    Runs,
    describe_point,
    draw_band,
    leave_empty,
    legend_above,
    panel_look,
    run_status_notes,
    say_below,
    window_of,
)
from controlvae.paper.printed import PaperFigure

_MOST_LINES = 26  # of words, that the place of a panel holds


def write_disentangling(paper: PaperFigure, runs: Runs, out: Path) -> list[str]:
    """(a) reconstruction and (b) weight against steps, mean and spread over seeds; (c) KL per latent of one run.

    Writes `NAME.png`, `NAME.csv` for (a) and (b), `NAME-latents.csv` for (c), and returns what must be said.
    """
    window = window_of(paper, runs)
    notes = run_status_notes(paper, runs, least=window)
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    notes += _draw_methods(paper, runs, window, left, middle, out)
    left.set_ylabel("reconstruction (nats per example)")
    middle.set_ylabel("weight β(t)")
    notes += _draw_example(paper, runs, right, out)
    right.set_ylabel("KL per latent (nats)")
    for axis in (left, middle):
        if not axis.lines:
            leave_empty(axis, "nothing to draw yet")
    for axis, letter in zip((left, middle, right), "abc", strict=True):
        panel_look(axis, letter)
    legend_above(figure, left)
    about = f"(a), (b): a point is {describe_point(window)}; line: mean over seeds, shade: ± sd."
    say_below(figure, [about, *notes])
    save_figure(figure, out / f"{paper.name}.png")
    return notes


def write_traversals(
    paper: PaperFigure, runs: Runs, out: Path, *, root: Path | None, device: torch.device
) -> list[str]:
    """A traversal of each method: of the seed with the median MIG, neither the best nor the worst.

    From the paper's heart, or a random picture where a run has not all of them: the same one where its data are. Writes
    `NAME.png` and, with latent, KL and factor of every row, `NAME.csv`; returns what must be said.
    """
    notes = run_status_notes(paper, runs)
    columns = len(paper.rows) // 2 + 1  # one more than methods, for words
    figure = Figure(figsize=(WIDTH * columns / 3, 4.8), layout="constrained")
    axes = figure.subplots(2, columns).flatten()
    lines: list[list[Any]] = []
    starts: dict[str, None] = {}
    for axis, row in zip(axes, paper.rows, strict=False):
        axis.set_title(row.method, fontsize=7.5)
        folder = typical(
            [f for f in runs.get(row.key, []) if latest_step(f.checkpoints) is not None]
        )
        if folder is None:
            leave_empty(axis, "nothing to show yet", square=True)
            continue
        try:
            run = load_run(folder, root=root, device=device)
            shown = traverse_latents(
                run, "heart" if has_all_shapes(run) else None, np.linspace(-3, 3, 10)
            )
        except (
            UserError
        ) as error:  # a damaged checkpoint or a run on other data leaves the other panels whole
            notes.append(f"{row.method}: {error}.")
            leave_empty(axis, "cannot be shown", square=True)
            continue
        starts["the paper's heart" if has_all_shapes(run) else shown.start] = None
        draw_traversal(axis, shown, fontsize=5.2, stacked=True, every=3)
        seed = run.experiment.training.seed
        axis.set_xlabel(f"seed {seed}, step {run.step:,}", fontsize=5.5, color=QUIET)
        lines += [
            [
                row.method,
                row.preset,
                seed,
                run.step,
                place,
                latent + 1,
                kl,
                _factor(shown.factors, latent),
            ]
            for place, (latent, kl) in enumerate(zip(shown.latents, shown.kl, strict=True), start=1)
        ]
    about = (
        f"From the code of {' or '.join(starts) or 'one picture'}. Rows: a latent, the factor it tells most about "
        f"(where that is {MIN_INFORMATION:g} nats or more), its KL. Columns: its value. The seed is the one of the median MIG; "
        "the first where none is evaluated."
    )
    for axis in axes[len(paper.rows) :]:
        axis.axis("off")
    spoken = [line for note in [about, *notes] for line in (*textwrap.wrap(note, 42), "")]
    if len(spoken) > _MOST_LINES:
        spoken[_MOST_LINES - 1 :] = ["... and more, which the command prints."]
    words = "\n".join(spoken)
    said = axes[-1].text(
        0, 1, words, va="top", transform=axes[-1].transAxes, fontsize=5.5, color=QUIET
    )
    said.set_in_layout(False)
    save_figure(figure, out / f"{paper.name}.png")
    write_csv(
        out / f"{paper.name}.csv",
        ["method", "preset", "seed", "step", "row", "latent", "kl", "factor"],
        lines,
    )
    return notes


def typical(folders: Sequence[RunFolder]) -> RunFolder | None:
    """The seed whose MIG is the (lower) median, or the first where none is evaluated."""
    scored = [
        (metrics["mig_sampled"]["score"], place)
        for place, folder in enumerate(folders)
        if (metrics := folder.metrics()) and "score" in metrics.get("mig_sampled", ())
    ]
    if scored:
        return folders[sorted(scored)[(len(scored) - 1) // 2][1]]
    return folders[0] if folders else None


def _draw_methods(
    paper: PaperFigure, runs: Runs, window: int, left: Axes, middle: Axes, out: Path
) -> list[str]:
    """Every method's two curves, and the sheet of both; says whose weight is not that of the KL."""
    lines: list[list[Any]] = []
    notes, drawn = [], []
    for place, row in enumerate(paper.rows):  # a method keeps its colour whoever else is missing
        folders = runs.get(row.key, [])
        logs = [records for folder in folders if (records := folder.records())]
        reconstruction, weight = (
            seed_statistics(logs, "reconstruction", window),
            seed_statistics(logs, "beta", window),
        )
        if not len(weight.steps):
            continue
        experiment = folders[0].experiment()
        held, law = experiment.objective.controlled_quantity, experiment.control
        if isinstance(
            law, Capacity
        ):  # as the paper draws it; the log has the mean of a sign that flips all the time
            weight = replace(
                weight, mean=np.full_like(weight.mean, law.gamma), sd=np.zeros_like(weight.sd)
            )
            notes.append(
                f"(b): the weight of {row.method} is γ, that of |KL − C|; its KL is weighed by +γ or −γ."
            )
        elif held != "kl":
            notes.append(f"(b): the weight of {row.method} is that of the {QUANTITY_LABELS[held]}.")
        drawn.append((row.method, place, reconstruction, weight))
        columns = zip(
            weight.steps,
            weight.seeds,
            reconstruction.mean,
            reconstruction.sd,
            weight.mean,
            weight.sd,
            strict=True,
        )
        lines += [[row.method, row.preset, held, *values] for values in columns]
    _draw_bands(
        left, [(method, place, reconstruction) for method, place, reconstruction, _ in drawn]
    )
    _draw_bands(middle, [(method, place, weight) for method, place, _, weight in drawn])
    heads = [
        "step",
        "seeds",
        "reconstruction mean",
        "reconstruction sd",
        "weight mean",
        "weight sd",
    ]
    write_csv(out / f"{paper.name}.csv", ["method", "preset", "held", *heads], lines)
    return notes


def _draw_bands(axis: Axes, methods: Sequence[tuple[str, int, SeedStatistics]]) -> None:
    """The curves of all methods, on a logarithmic axis where none of them comes to zero."""
    lowest = min((values.mean.min() for _, _, values in methods), default=0.0)
    bottom = (
        0.7 * lowest if lowest > 0 else -np.inf
    )  # a band that goes below zero would take the axis with it
    for method, place, values in methods:
        draw_band(axis, values, method, place, bottom)
    if lowest > 0:
        set_log_scale(axis)
        axis.set_ylim(bottom=bottom)


def _draw_example(paper: PaperFigure, runs: Runs, axis: Axes, out: Path) -> list[str]:
    """The latents of one run one by one, and their sheet; says which run, or that there is none."""
    method = next(row.method for row in paper.rows if row.preset == paper.latents_of)
    folder = typical([folder for folder in runs.get(paper.latents_of, []) if folder.records()])
    axis.set_title(method)
    if folder is None:
        leave_empty(axis, "no log")
        write_csv(out / f"{paper.name}-latents.csv", ["step", "target"], [])
        return [f"(c): no log of {method}."]
    records, factors = folder.records(), dominant_factors(folder.metrics())
    draw_latent_kl(axis, RunTrace.of(method, folder), factors, linewidth=1.0)
    axis.set_ylim(top=1.25 * axis.get_ylim()[1])  # room for the legend
    axis.legend(
        frameon=False,
        fontsize=5.5,
        loc="upper left",
        ncols=2,
        handlelength=1.6,
        columnspacing=0.8,
        labelspacing=0.25,
        borderaxespad=0,
    )
    latents = range(len(records[0]["kl_per_latent"]))
    names = [f"z{latent + 1} {_factor(factors, latent)}".strip() for latent in latents]
    lines = [[record["step"], record["target"], *record["kl_per_latent"]] for record in records]
    write_csv(out / f"{paper.name}-latents.csv", ["step", "target", *names], lines)
    metrics = folder.metrics()
    why = ", the seed of the median MIG" if metrics else ""
    said = [f"(c): {method}, seed {folder.experiment().training.seed}{why}."]
    if metrics and factors:
        said.append(
            f"At step {metrics['step']:,} a latent is named by {describe_dominant_factor(metrics)}."
        )
    return [" ".join(said)]


def _factor(factors: Sequence[str | None], latent: int) -> str:
    return (factors[latent] if factors else None) or ""
