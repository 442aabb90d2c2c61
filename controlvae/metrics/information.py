"""Use of the latent code: active units and mutual information between data and code."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.metrics._validation import check_codes, to_numpy

#: Variance of a posterior mean over the data above which a unit is active (Burda et al. 2016).
ACTIVE_UNIT_VARIANCE = 0.01

_CHUNK = 1_024  # examples compared with all others at a time
_MAX_EXACT_SQUARE = 1e10  # (μ/σ)² up to which float64 may expand the square of a difference


class MutualInformation(NamedTuple):
    """Bounds on the mutual information of data and code, in nats."""

    lower: float  # at most log(examples)
    upper: float
    examples: int


def active_units(means: Any, threshold: float = ACTIVE_UNIT_VARIANCE) -> int:
    r"""Count the latents whose posterior mean varies with the input.

    .. math:: \#\{j : \mathrm{Var}_x[\mu_j(x)] > 0.01\}

    Burda et al., *Importance Weighted Autoencoders*, 2016. In contrast,
    `diagnostics.collapse.count_used_latents` counts the latents with a KL of at least 0.01 nats.

    Args:
        means: Posterior means, (examples, latents).
        threshold: Variance above which a latent is active.

    Returns:
        The number of active units.

    >>> active_units([[1.0, 5.0], [-1.0, 5.0]])
    1
    """
    values = check_codes("means", to_numpy(means), min_latents=1).astype(np.float64)
    return int((values.var(axis=0) > threshold).sum())


def mutual_information(means: Any, log_variances: Any, seed: int = 0) -> MutualInformation:
    r"""Bound the mutual information of data and code for Gaussian posteriors.

    .. math:: I(x; z) = \mathrm{E}_x \mathrm{KL}(q(z|x) \| p(z)) - \mathrm{KL}(q(z) \| p(z))

    The aggregate posterior q(z) is the mixture of all posteriors. The lower bound compares one z
    per example with the mixture of the N given examples,
    :math:`\mathrm{E} \log q(z|x) - \log \frac1N \sum_m q(z|x_m)`. It is at most log N (Hoffman &
    Johnson, *ELBO surgery*, 2016; Poole et al., *On Variational Bounds of Mutual Information*,
    2019).
    The upper bound replaces KL(q(z) || p(z)) by `aggregate_divergence`, which is not larger.

    Args:
        means: Posterior means, (examples, latents).
        log_variances: Logarithms of the posterior variances, same shape.
        seed: Seed of the draws of z.

    Returns:
        The lower bound, the upper bound and the number of examples.

    >>> bounds = mutual_information([[-9.0], [9.0]], [[0.0], [0.0]])
    >>> round(bounds.lower, 4) == round(math.log(2), 4)
    True
    """
    mean, log_variance = (
        torch.as_tensor(check_codes(name, to_numpy(values), min_latents=1), device="cpu").double()
        for name, values in (("means", means), ("log_variances", log_variances))
    )
    if mean.shape != log_variance.shape:
        raise ValueError(
            f"means and log_variances must have equal shapes, got {tuple(mean.shape)} and "
            f"{tuple(log_variance.shape)}"
        )
    posterior = Posterior(mean, log_variance)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device="cpu")
    z, precision = posterior.sample(noise), (-log_variance).exp()
    own = -0.5 * (noise.square() + log_variance).sum(1)
    distances = _squared_distances(mean, precision)
    scale = log_variance.sum(1)  # constants of the densities cancel
    mixture = [torch.logsumexp(-0.5 * (distances(few) + scale), dim=1) for few in z.split(_CHUNK)]
    difference = (own - torch.cat(mixture)).mean().item()
    lower = min(difference, 0.0) + math.log(len(mean))  # above 0 only by rounding
    # KL - aggregate_divergence, written so that the squared means cancel. It stays exact for codes
    # far from zero.
    variance = mean.var(0, correction=0) + log_variance.exp().mean(0)
    upper = max(0.0, 0.5 * (variance.log() - log_variance.mean(0)).sum().item())
    # Sampling noise may put the lower bound above the upper one where they nearly meet.
    return MutualInformation(min(max(0.0, lower), upper), upper, len(mean))


def _squared_distances(mean: Tensor, precision: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that computes Σ (z - μ)² / σ² of every z and posterior, (z, posteriors).

    It uses two matrix products where those are exact.
    """
    if (mean.square() * precision).max() < _MAX_EXACT_SQUARE:
        offset = (mean.square() * precision).sum(1)
        return lambda z: z.square() @ precision.T - 2 * z @ (mean * precision).T + offset
    latents = range(mean.shape[1])
    return lambda z: sum((z[:, j, None] - mean[:, j]).square() * precision[:, j] for j in latents)  # type: ignore[return-value]


def aggregate_divergence(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Compute the KL of N(mean, variance) from N(0, 1) for each latent.

    .. math:: \tfrac12 (\mu_j^2 + \sigma_j^2 - 1 - \ln \sigma_j^2)

    It measures how far the aggregate posterior is from the prior. The sum over latents is a lower
    bound of :math:`\mathrm{KL}(q(z) \| p(z))`: among all distributions with these moments the
    Gaussian is nearest to the prior, and the product of the marginals is not farther than q(z)
    (Hoffman & Johnson, *ELBO surgery*, 2016).

    Args:
        mean: Mean of z over data and posteriors, (latents,).
        variance: Variance of z over data and posteriors, (latents,).

    Returns:
        Divergences in nats, (latents,).

    >>> aggregate_divergence(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])).tolist()
    [0.0, 2.0]
    """
    return gaussian_kl(Posterior(mean, variance.log()))
