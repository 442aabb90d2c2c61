"""Interface of a plant, and the terms that several plants share."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from laws.stack import Stack


class Losses(NamedTuple):
    """Losses of every run on one batch, each (runs,).

    A run is trained on `objective + weight * term`. The law sees `measured`.
    """

    objective: Tensor
    term: Tensor
    measured: Tensor


class Plant(ABC):
    """Stack of trainings.

    Args:
        stack: Stack of runs. The plant creates its parameters there.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    @abstractmethod
    def losses(self, step: int) -> Losses:
        """Return the losses of a new batch at a step, counted from zero."""


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the KL of Gaussians from the standard normal, summed over the last axis."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)


def gaussian_kl_between(
    mean: Tensor, log_variance: Tensor, prior_mean: Tensor, prior_log_variance: Tensor
) -> Tensor:
    """Return the KL between diagonal Gaussians, summed over the last axis.

    Args:
        mean: Means of the posterior.
        log_variance: Logarithms of its variances.
        prior_mean: Means of the prior.
        prior_log_variance: Logarithms of its variances.
    """
    difference = log_variance - prior_log_variance
    squares = (mean - prior_mean).square() * (-prior_log_variance).exp()
    return 0.5 * (squares + difference.exp() - 1 - difference).sum(-1)


def gaussian_log_density(x: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the log density of diagonal Gaussians, summed over the last axis.

    Args:
        x: Points.
        mean: Means.
        log_variance: Logarithms of the variances.
    """
    squares = (x - mean).square() * (-log_variance).exp()
    return -0.5 * (squares + log_variance + 1.8378770664093453).sum(-1)


def sample_gaussian(stack: Stack, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Draw a reparametrised sample.

    Args:
        stack: Stack of runs.
        mean: Means, (runs, ...).
        log_variance: Logarithms of the variances.
    """
    return mean + (0.5 * log_variance).exp() * stack.normal(*mean.shape[1:])


def bernoulli_loss(logits: Tensor, x: Tensor) -> Tensor:
    """Return the negative log-likelihood of pixels in [0, 1], summed over the last axis."""
    return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


def split_posterior(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split the output of an encoder into mean and bounded log variance."""
    mean, log_variance = values.chunk(2, -1)
    return mean, log_variance.clamp(-16, 8)


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the cross entropy of class numbers, of the shape of `classes`."""
    return -logits.log_softmax(-1).gather(-1, classes[..., None]).squeeze(-1)


def sample_classes(stack: Stack, logits: Tensor) -> Tensor:
    """Draw class numbers from logits, (runs, ..., classes)."""
    with torch.no_grad():
        return (logits + stack.gumbel(*logits.shape[1:])).argmax(-1)
