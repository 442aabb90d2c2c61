"""The terms objectives are made of, in nats per example. They are returned, never weighed: training does that.

Every function works on the last dimensions, (batch, latents), and takes any number of models before them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from controlvae.experiments.experiment import ObjectiveSettings
from controlvae.models import Model, Posterior
from controlvae.objectives.text import sequence_nll


class Divergence(NamedTuple):
    """KL(q(z|x) || p(z)) averaged over the batch: in all, and of each latent."""

    kl: Tensor
    per_latent: Tensor  # (..., latents)


class Terms(NamedTuple):
    """What a code costs, averaged over the batch: one number per model.

    The loss is reconstruction + given + weight x held.
    """

    divergence: Divergence
    held: Tensor  # what the weight multiplies and a controller holds
    given: Tensor | float  # what is paid in full
    extras: tuple[Tensor, ...] = ()  # further columns of the log


def bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    """-log p(x|z) of binary pixels: the cross-entropy, summed over each example's own dimensions. (batch,)"""
    return F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)


def squared_error(logits: Tensor, x: Tensor) -> Tensor:
    """Σ (sigmoid(logits) - x)² of each example: the released image loss, a Gaussian of variance 1/2. (batch,)"""
    return (torch.sigmoid(logits) - x).square().flatten(1).sum(1)


LIKELIHOODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"bernoulli": bernoulli, "squared-error": squared_error}


def reconstruction_of(objective: ObjectiveSettings) -> Callable[[Model, Tensor, Any, Tensor | None], Tensor]:
    """-log p(x|z) of each example, (batch,), as a function of model, z, x and what a posterior has as `given`."""
    if objective.likelihood == "tokens":
        return sequence_nll
    likelihood = LIKELIHOODS[objective.likelihood]
    return lambda model, z, x, given: likelihood(model.decode(z), x)  # type: ignore[call-arg]


def gaussian_kl(posterior: Posterior) -> Tensor:
    r"""KL(N(μ, σ²) || p(z)) of each latent, (batch, latents).

    For p = N(0, 1) it is :math:`(\mu^2 + \sigma^2 - 1 - \log \sigma^2) / 2`; a prior of its own sets the origin and the
    unit.
    """
    mean, log_variance = posterior.moved, posterior.log_variance
    if posterior.prior is not None:
        mean = mean * torch.exp(-0.5 * posterior.prior.log_variance)
        log_variance = log_variance - posterior.prior.log_variance
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def divergence(posterior: Posterior) -> Divergence:
    kl = gaussian_kl(posterior)
    return Divergence(kl.sum(-1).mean(-1), kl.mean(-2))


def elbo_terms(divergence: Divergence) -> Terms:
    """ELBO = -(reconstruction + KL); the weight multiplies the KL."""
    return Terms(divergence, held=divergence.kl, given=0.0)


def bag_terms(divergence: Divergence, bag: Tensor, weight: float) -> Terms:
    """The ELBO's terms beside the cost of guessing words in any order, `bag` (..., batch), which is paid in full."""
    cost = bag.mean(-1)
    return Terms(divergence, held=divergence.kl, given=weight * cost, extras=(cost.detach(),))
