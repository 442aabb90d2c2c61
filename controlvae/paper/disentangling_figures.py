"""Figures 3 and 4: reconstruction, weight and KL per latent during training; latent traversals."""

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
    FIGURE_WIDTH,
    NOTE_COLOUR,
    RunsByKey,
    add_legend_above,
    add_notes_below,
    choose_window,
    describe_point,
    draw_band,
    draw_placeholder,
    run_status_notes,
    style_panel,
)
from controlvae.paper.specs import PaperFigure, Row

_MAX_NOTE_LINES = 26  # lines of text that fit into the place of a panel
_TRAVERSAL_HEADS = ["method", "preset", "seed", "step", "row", "latent", "kl", "factor"]


def write_disentangling(spec: PaperFigure, runs: RunsByKey, out: Path) -> list[str]:
    """Draw Figure 3: (a) reconstruction, (b) weight, (c) KL per latent of one run.

    Writes `NAME.png`, `NAME.csv` for (a) and (b), and `NAME-latents.csv` for (c).

    Args:
        spec: Specification of the figure.
        runs: Seeds of each method, by the key of its row.
        out: Folder to write to.

    Returns:
        Notes on the runs behind the figure.
    """
    window = choose_window(spec, runs)
    notes = run_status_notes(spec, runs, least=window)
    figure = Figure(figsize=(FIGURE_WIDTH, 2.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    notes += _draw_methods(spec, runs, window, (left, middle), out)
    left.set_ylabel("reconstruction (nats per example)")
    middle.set_ylabel("weight β(t)")
    notes += _draw_latents(spec, runs, right, out)
    right.set_ylabel("KL per latent (nats)")
    for axis in (left, middle):
        if not axis.lines:
            draw_placeholder(axis, "nothing to draw yet")
    for axis, letter in zip((left, middle, right), "abc", strict=True):
        style_panel(axis, letter)
    add_legend_above(figure, left)
    about = f"(a), (b): a point is {describe_point(window)}. Line: mean over seeds; shade: ± sd."
    add_notes_below(figure, [about, *notes])
    save_figure(figure, out / f"{spec.name}.png")
    return notes


def write_traversals(
    spec: PaperFigure, runs: RunsByKey, out: Path, *, root: Path | None, device: torch.device
) -> list[str]:
    """Draw Figure 4: a traversal of each method, for the seed with the median MIG.

    A traversal starts from the paper's heart if the run has all images of 2D Shapes, else from a
    random image. Writes `NAME.png` and `NAME.csv`.

    Args:
        spec: Specification of the figure.
        runs: Seeds of each method, by the key of its row.
        out: Folder to write to.
        root: Data folder.
        device: Device on which images are decoded.

    Returns:
        Notes on the runs behind the figure.
    """
    notes = run_status_notes(spec, runs)
    columns = len(spec.rows) // 2 + 1  # one place more than methods, for the notes
    figure = Figure(figsize=(FIGURE_WIDTH * columns / 3, 4.8), layout="constrained")
    axes = figure.subplots(2, columns).flatten()
    lines: list[list[Any]] = []
    starts: dict[str, None] = {}
    for axis, row in zip(axes, spec.rows, strict=False):
        axis.set_title(row.method, fontsize=7.5)
        trained = [f for f in runs.get(row.key, []) if latest_step(f.checkpoints) is not None]
        folder = select_median_seed(trained)
        if folder is None:
            draw_placeholder(axis, "nothing to show yet", square=True)
            continue
        try:
            start, rows = _draw_method_traversal(axis, row, folder, root, device)
        except UserError as error:  # a corrupt checkpoint must not spoil the other panels
            notes.append(f"{row.method}: {error}.")
            draw_placeholder(axis, "cannot be shown", square=True)
            continue
        starts[start] = None
        lines += rows
    about = (
        f"From the code of {' or '.join(starts) or 'one image'}. Rows: a latent, its dominant "
        f"factor (of {MIN_INFORMATION:g} nats or more), its KL. Columns: its value. "
        "The seed has the median MIG, or is the first if none is evaluated."
    )
    for axis in axes[len(spec.rows) :]:
        axis.axis("off")
    _write_notes(axes[-1], [about, *notes])
    save_figure(figure, out / f"{spec.name}.png")
    write_csv(out / f"{spec.name}.csv", _TRAVERSAL_HEADS, lines)
    return notes


def _draw_method_traversal(
    axis: Axes, row: Row, folder: RunFolder, root: Path | None, device: torch.device
) -> tuple[str, list[list[Any]]]:
    """Draw the traversal of one run and return its start and the lines of the CSV file."""
    run = load_run(folder, root=root, device=device)
    complete = has_all_shapes(run)
    traversal = traverse_latents(run, "heart" if complete else None, np.linspace(-3, 3, 10))
    draw_traversal(axis, traversal, fontsize=5.2, stacked=True, every=3)
    seed = run.experiment.training.seed
    axis.set_xlabel(f"seed {seed}, step {run.step:,}", fontsize=5.5, color=NOTE_COLOUR)
    identity = (row.method, row.preset, seed, run.step)
    latents = enumerate(zip(traversal.latents, traversal.kl, strict=True), start=1)
    lines = [
        [*identity, place, latent + 1, kl, _factor_name(traversal.factors, latent)]
        for place, (latent, kl) in latents
    ]
    return "the paper's heart" if complete else traversal.start, lines


def _write_notes(axis: Axes, notes: Sequence[str]) -> None:
    lines = [line for note in notes for line in (*textwrap.wrap(note, 42), "")]
    if len(lines) > _MAX_NOTE_LINES:
        lines[_MAX_NOTE_LINES - 1 :] = ["... and more, which the command prints."]
    place: dict[str, Any] = {"va": "top", "transform": axis.transAxes}
    text = axis.text(0, 1, "\n".join(lines), fontsize=5.5, color=NOTE_COLOUR, **place)
    text.set_in_layout(False)


def select_median_seed(folders: Sequence[RunFolder]) -> RunFolder | None:
    """Return the run with the lower median MIG, or the first run if none is evaluated."""
    scored = [
        (metrics["mig_sampled"]["score"], place)
        for place, folder in enumerate(folders)
        if (metrics := folder.metrics()) and "score" in metrics.get("mig_sampled", ())
    ]
    if scored:
        return folders[sorted(scored)[(len(scored) - 1) // 2][1]]
    return folders[0] if folders else None


def _draw_methods(
    spec: PaperFigure, runs: RunsByKey, window: int, axes: tuple[Axes, Axes], out: Path
) -> list[str]:
    """Draw reconstruction and weight of every method, write their CSV file and return notes."""
    lines: list[list[Any]] = []
    notes: list[str] = []
    curves: list[tuple[str, int, SeedStatistics, SeedStatistics]] = []
    for place, row in enumerate(spec.rows):  # the index fixes the colour, whoever is missing
        folders = runs.get(row.key, [])
        logs = [records for folder in folders if (records := folder.records())]
        reconstruction = seed_statistics(logs, "reconstruction", window)
        weight = seed_statistics(logs, "beta", window)
        if not len(weight.steps):
            continue
        experiment = folders[0].experiment()
        quantity, law = experiment.objective.controlled_quantity, experiment.control
        if isinstance(law, Capacity):
            # The log has the mean of a sign that flips all the time; the paper draws γ.
            gamma = np.full_like(weight.mean, law.gamma)
            weight = replace(weight, mean=gamma, sd=np.zeros_like(weight.sd))
            notes.append(f"(b): {row.method} is drawn at γ; its KL weight alternates between ±γ.")
        elif quantity != "kl":
            notes.append(f"(b): {row.method} weighs its {QUANTITY_LABELS[quantity]}.")
        curves.append((row.method, place, reconstruction, weight))
        columns = (weight.steps, weight.seeds, reconstruction.mean, reconstruction.sd)
        cells = zip(*columns, weight.mean, weight.sd, strict=True)
        lines += [[row.method, row.preset, quantity, *values] for values in cells]
    left, middle = axes
    _draw_bands(left, [(method, place, values) for method, place, values, _ in curves])
    _draw_bands(middle, [(method, place, values) for method, place, _, values in curves])
    heads = ["method", "preset", "held", "step", "seeds"]
    heads += ["reconstruction mean", "reconstruction sd", "weight mean", "weight sd"]
    write_csv(out / f"{spec.name}.csv", heads, lines)
    return notes


def _draw_bands(axis: Axes, methods: Sequence[tuple[str, int, SeedStatistics]]) -> None:
    """Draw the curves of all methods, on a logarithmic axis if none of them reaches zero."""
    lowest = min((values.mean.min() for _, _, values in methods), default=0.0)
    # A band below zero would stretch a logarithmic axis without end.
    bottom = 0.7 * lowest if lowest > 0 else -np.inf
    for method, place, values in methods:
        draw_band(axis, values, method, place, bottom)
    if lowest > 0:
        set_log_scale(axis)
        axis.set_ylim(bottom=bottom)


def _draw_latents(spec: PaperFigure, runs: RunsByKey, axis: Axes, out: Path) -> list[str]:
    """Draw the KL per latent of one run, write its CSV file and return a note on the run."""
    method = next(row.method for row in spec.rows if row.preset == spec.latents_of)
    logged = [folder for folder in runs.get(spec.latents_of, []) if folder.records()]
    folder = select_median_seed(logged)
    axis.set_title(method)
    if folder is None:
        draw_placeholder(axis, "no log")
        write_csv(out / f"{spec.name}-latents.csv", ["step", "target"], [])
        return [f"(c): no log of {method}."]
    metrics, records = folder.metrics(), folder.records()
    factors = dominant_factors(metrics)
    draw_latent_kl(axis, RunTrace.of(method, folder), factors, linewidth=1.0)
    axis.set_ylim(top=1.25 * axis.get_ylim()[1])  # room for the legend
    spacing = {"handlelength": 1.6, "columnspacing": 0.8, "labelspacing": 0.25, "borderaxespad": 0}
    axis.legend(frameon=False, fontsize=5.5, loc="upper left", ncols=2, **spacing)
    latents = range(len(records[0]["kl_per_latent"]))
    names = [f"z{latent + 1} {_factor_name(factors, latent)}".strip() for latent in latents]
    lines = [[record["step"], record["target"], *record["kl_per_latent"]] for record in records]
    write_csv(out / f"{spec.name}-latents.csv", ["step", "target", *names], lines)
    choice = ", the seed with the median MIG" if metrics else ""
    note = f"(c): {method}, seed {folder.experiment().training.seed}{choice}."
    if metrics and factors:
        naming = describe_dominant_factor(metrics)
        note += f" At step {metrics['step']:,} a latent is named by {naming}."
    return [note]


def _factor_name(factors: Sequence[str | None], latent: int) -> str:
    return (factors[latent] if factors else None) or ""
