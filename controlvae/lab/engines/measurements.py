"""What is measured at every step, and how a window of steps becomes one line of the log."""

from typing import Any

import torch
from torch import Tensor

from controlvae.lab.config import Experiment

# The weight is that of the step; its parts and whether it is at a bound are the law's answer to the step, which with
# training.delayed is the weight of the next.
_COMMON = ("reconstruction", "kl", "target", "beta", "p", "i", "saturated")


def columns(experiment: Experiment) -> tuple[str, ...]:
    """The names of a row of measurements: these, then the KL of each latent."""
    return (*_COMMON, *experiment.objective.extras)


def width(experiment: Experiment) -> int:
    return len(columns(experiment)) + experiment.model.latents


def named(row: Tensor, experiment: Experiment) -> dict[str, float]:
    """One row by its columns."""
    return dict(zip(columns(experiment), row.tolist(), strict=False))


def summarise(step: int, rows: Tensor, experiment: Experiment) -> dict[str, Any]:
    """The record of a window: means over its steps, so that a line stands for all of them. rows: (steps, columns)."""
    names, held = columns(experiment), experiment.controlled_quantity
    rows = rows.double()
    means = named(rows.mean(0), experiment)
    return {
        "step": step,
        "elbo": -(means["reconstruction"] + means["kl"]),
        **means,
        "target": None if experiment.control.open_loop else means["target"],
        f"{held}_sd": rows[:, names.index(held)].std(correction=0).item(),
        "kl_per_latent": rows[:, len(names) :].mean(0).tolist(),
    }


def first_bad_row(rows: Tensor) -> int | None:
    """The first step of these at which anything measured is NaN or infinite."""
    bad = ~torch.isfinite(rows).all(dim=1)
    return int(bad.nonzero()[0, 0]) if bool(bad.any()) else None


def nats(value: float) -> str:
    """Two decimals, and of what is small two digits: a total correlation is often held at thousandths."""
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"
