"""A sweep's runs in one picture: reconstruction against KL, each point at the KL its controller held."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from controlvae.experiments import RunFolder
from controlvae.experiments.folder import write_text
from controlvae.report.figures import COLOURS
from controlvae.report.pictures import save_figure

_COLUMNS = ("kl", "reconstruction", "elbo", "beta")


def write_sweep(runs: Mapping[str, Sequence[RunFolder]], out: Path) -> list[str]:
    """Writes `sweep.csv` and `sweep.png` into the sweep's folder; returns the table and where it went, as lines."""
    points = {label: _points(folders) for label, folders in runs.items()}
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["setting", "seeds", "steps", *(f"{name} {what}" for name in _COLUMNS for what in ("mean", "sd"))])
    lines = []
    for label, own in points.items():
        if len(own) == 0:
            lines.append(f"{label}: nothing trained yet")
            continue
        mean, sd = own.mean(0), own.std(0, ddof=1) if len(own) > 1 else np.full(len(_COLUMNS), np.nan)
        steps = min(folder.records()[-1]["step"] for folder in runs[label] if folder.records())
        writer.writerow([label, len(own), steps, *(f"{v:.6g}" for pair in zip(mean, sd, strict=True) for v in pair)])
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in zip(_COLUMNS, mean, strict=True))
        lines.append(f"{label:24s} {len(own)} seed{'s' if len(own) > 1 else ' '}  step {steps:,}  {numbers}")
    write_text(out / "sweep.csv", table.getvalue())
    save_figure(sweep_figure(points), out / "sweep.png")
    return [*lines, f"written to {out / 'sweep.csv'} and .png"]


def sweep_figure(points: Mapping[str, np.ndarray]) -> Figure:
    """Rate-distortion on the left, ELBO against KL on the right; a point for every seed."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    for axis, column in zip(figure.subplots(1, 2), (1, 2), strict=True):
        for number, (label, own) in enumerate(points.items()):
            if len(own):
                axis.scatter(own[:, 0], own[:, column], s=18, color=COLOURS[number % len(COLOURS)], label=label)
        axis.set_xlabel("KL (nats per example)")
        axis.set_ylabel(f"{_COLUMNS[column].replace('elbo', 'ELBO')} (nats per example)")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    if figure.axes[0].get_legend_handles_labels()[0]:
        figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def _points(folders: Sequence[RunFolder]) -> np.ndarray:
    """Means over the last tenth of each run's log, on the training batches: (seeds, columns)."""
    logs = [folder.records() for folder in folders]
    tails = [log[-max(1, len(log) // 10) :] for log in logs if log]
    return np.array([[np.mean([r[name] for r in tail]) for name in _COLUMNS] for tail in tails])
