"""Parts of likelihoods of user-supplied models: a learnt variance, and class numbers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def learn_variance(module: nn.Module, start: float) -> None:
    """Add a learnt log-variance of p(x|z) to a module, if it has none."""
    if getattr(module, "pixel_log_variance", None) is None:
        like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
        value = torch.tensor(math.log(start), dtype=like.dtype, device=like.device)
        module.register_parameter("pixel_log_variance", nn.Parameter(value))


def class_nll(logits: Tensor, x: Tensor) -> Tensor:
    """Return the cross-entropy of class numbers, summed over each example: (batch,).

    Args:
        logits: Scores, (batch, classes, ...) or (batch, ..., classes).
        x: Class numbers, (batch, ...). -100 is padding and costs nothing.
    """
    if logits.shape[:-1] == x.shape and logits.dim() != x.dim():
        logits = logits.movedim(-1, 1)
    return F.cross_entropy(logits, x.long(), reduction="none").reshape(len(x), -1).sum(1)
