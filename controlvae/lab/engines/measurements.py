"""Measurements of a step as a row of numbers, and their summary as one line of the log."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.lab.config import Experiment
from controlvae.lab.engines.rate_bins import rate_columns
from controlvae.lab.objectives import Divergence, Terms
from controlvae.laws.states import Signals

# `beta` is the weight of the step. `p`, `i` and `saturated` belong to the law's answer to the step,
# which with training.delayed is the weight of the next step.
_COMMON_COLUMNS = ("reconstruction", "kl", "target", "beta", "p", "i", "saturated")


def row_columns(experiment: Experiment) -> tuple[str, ...]:
    """Return the column names of a row. The KL of each latent follows them without a name."""
    extra_columns = (*experiment.objective.extra_columns, *rate_columns(experiment))
    return (*_COMMON_COLUMNS, *extra_columns)


def row_width(experiment: Experiment) -> int:
    """Return the number of values in a row."""
    return len(row_columns(experiment)) + experiment.model.latents


def make_row(
    control: Controller,
    reconstruction: Tensor,
    terms: Terms,
    beta: float | Tensor,
    device: torch.device,
) -> Tensor:
    """Return the row of measurements of a step, (columns,), without waiting for the device.

    Args:
        control: Controller after its step.
        reconstruction: Reconstruction loss, averaged over the batch.
        terms: Terms of the objective.
        beta: Weight of the step.
        device: Device of the row.
    """
    signals, (low, high) = control.signals(), control.laws[0].bounds
    saturated = (signals.unclamped_beta < low) | (signals.unclamped_beta > high)
    kl, kl_per_latent = terms.divergence
    law_terms = (signals.proportional, signals.integral)
    values = (reconstruction.detach(), kl.detach(), signals.target, beta, *law_terms)
    row = [
        torch.as_tensor(value, dtype=torch.float64, device=device).reshape(1)
        for value in (*values, saturated, *terms.extras)
    ]
    return torch.cat([*row, kl_per_latent.detach().double()])


def make_rows(
    signals: Signals,
    bounds: Sequence[Tensor],
    reconstruction: Tensor,
    divergence: Divergence,
    beta: Tensor,
    extras: Sequence[Tensor],
) -> Tensor:
    """Return the measurements of a step of several models, (models, columns).

    Args:
        signals: Signals of the controller after its step, one value per model.
        bounds: Lowest and highest weight of each model's law, each (models,).
        reconstruction: Reconstruction loss of each model, averaged over the batch.
        divergence: KL of each model, and of each of its latents.
        beta: Weight of the step, (models,).
        extras: Values of the objective's further columns, each (models,).
    """
    low, high = bounds
    unclamped = signals.unclamped_beta
    saturated = (unclamped < low) | (unclamped > high)
    law_terms = [signals.proportional, signals.integral, saturated]
    columns = [reconstruction, divergence.kl, signals.target, beta, *law_terms, *extras]
    row = torch.stack([column.detach().double() for column in columns], dim=1)
    return torch.cat([row, divergence.per_latent.detach().double()], dim=1)


def row_to_dict(row: Tensor, experiment: Experiment) -> dict[str, float]:
    """Return the named values of a row."""
    return dict(zip(row_columns(experiment), row.tolist(), strict=False))


def summarise_rows(step: int, rows: Tensor, experiment: Experiment) -> dict[str, Any]:
    """Return the log record of a window of steps: means over its rows.

    Args:
        step: Last step of the window.
        rows: Measurements, (steps, columns).
        experiment: Experiment that the rows belong to.
    """
    names, controlled = row_columns(experiment), experiment.controlled_quantity
    rows = rows.double()
    means = row_to_dict(rows.mean(0), experiment)
    return {
        "step": step,
        "elbo": -(means["reconstruction"] + means["kl"]),
        **means,
        "target": None if experiment.control.open_loop else means["target"],
        f"{controlled}_sd": rows[:, names.index(controlled)].std(correction=0).item(),
        "kl_per_latent": rows[:, len(names) :].mean(0).tolist(),
    }


def first_non_finite_row(rows: Tensor) -> int | None:
    """Return the index of the first row with a NaN or infinite value, or None."""
    bad = ~torch.isfinite(rows).all(dim=1)
    return int(bad.nonzero()[0, 0]) if bool(bad.any()) else None


def format_nats(value: float) -> str:
    """Format nats with two decimals, or small values with two significant digits.

    A total correlation is often controlled at thousandths of a nat.
    """
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"
