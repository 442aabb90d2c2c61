"""What is measured at every step, and how a window of steps becomes one line of the log."""

from typing import Any

import torch
from torch import Tensor

# One row per step: these, then the KL of each latent.
COLUMNS = ("reconstruction", "kl", "target", "beta", "p", "i", "saturated")


def summarise(step: int, rows: Tensor, open_loop: bool) -> dict[str, Any]:
    """The record of a window: means over its steps, so that a line stands for all of them. rows: (steps, columns)."""
    means = rows.double().mean(0).tolist()
    named = dict(zip(COLUMNS, means[: len(COLUMNS)], strict=True))
    spread = rows[:, COLUMNS.index("kl")].double().std(correction=0).item()
    if open_loop:
        named["target"] = None
    return {
        "step": step,
        "elbo": -(named["reconstruction"] + named["kl"]),
        **named,
        "kl_sd": spread,
        "kl_per_latent": means[len(COLUMNS) :],
    }


def first_bad_row(rows: Tensor) -> int | None:
    """The first step of these whose reconstruction or KL is NaN or infinite."""
    bad = ~torch.isfinite(rows[:, :2]).all(dim=1)
    return int(bad.nonzero()[0, 0]) if bool(bad.any()) else None
