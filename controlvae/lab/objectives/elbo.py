"""The terms objectives are made of, in nats per example. They are returned, never weighed: training does that.

Every function works on the last dimensions, (batch, latents), and takes any number of models before them.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from controlvae.distributions import Posterior, bernoulli, gaussian, gaussian_kl, squared_error
from controlvae.lab.config.objectives import Gaussian, Likelihood, ObjectiveSettings
from controlvae.lab.models import Model
from controlvae.lab.objectives.text import sequence_nll


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


PixelCost = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def pixel_cost(likelihood: Likelihood) -> PixelCost:
    """-log p(x|z) of each picture, (..., batch), as a function of logits, x and the learnt log-variance, if any."""
    match likelihood:
        case "bernoulli":
            return lambda logits, x, learnt: bernoulli(logits, x)
        case "squared-error":
            return lambda logits, x, learnt: squared_error(logits, x)
        case Gaussian(variance):
            return lambda logits, x, learnt: gaussian(
                logits, x, _log_variance(variance, logits, learnt)
            )
    raise ValueError(f"{likelihood!r} is not a likelihood of pictures")


def _log_variance(fixed: float, like: Tensor, learnt: Tensor | None) -> Tensor:
    return like.new_full((), math.log(fixed)) if learnt is None else learnt


def reconstruction_of(
    objective: ObjectiveSettings,
) -> Callable[[Model, Tensor, Any, Tensor | None], Tensor]:
    """-log p(x|z) of each example, (batch,), as a function of model, z, x and what a posterior has as `given`."""
    if objective.likelihood == "tokens":
        return sequence_nll
    cost = pixel_cost(objective.likelihood)
    return lambda model, z, x, given: cost(model.decode(z), x, model.pixel_log_variance)  # type: ignore[call-arg, arg-type]


def divergence(posterior: Posterior) -> Divergence:
    kl = gaussian_kl(posterior)
    return Divergence(kl.sum(-1).mean(-1), kl.mean(-2))


def elbo_terms(
    divergence: Divergence, free_bits: float = 0.0, kl_weights: Tensor | None = None
) -> Terms:
    """ELBO = -(reconstruction + KL); the weight multiplies the KL.

    With free bits it multiplies Σ max(λ, KL of a latent): a latent has λ nats to spend before it pays for more
    (Kingma et al., *Improved variational inference with inverse autoregressive flow*, 2016, appendix C.8).

    With `prices`, (latents,), it multiplies Σ price x KL of a latent in the gradient alone: what is held, and to be
    held at a set point, is the KL itself.
    """
    if kl_weights is not None:
        paid = (divergence.per_latent * kl_weights).sum(-1)
        return Terms(divergence, held=paid + (divergence.kl - paid).detach(), given=0.0)
    floored = divergence.per_latent.clamp(min=free_bits).sum(-1) if free_bits else divergence.kl
    return Terms(divergence, held=floored, given=0.0)


def bag_terms(divergence: Divergence, bag: Tensor, weight: float) -> Terms:
    """The ELBO's terms beside the cost of guessing words in any order, `bag` (..., batch), which is paid in full."""
    cost = bag.mean(-1)
    return Terms(divergence, held=divergence.kl, given=weight * cost, extras=(cost.detach(),))
