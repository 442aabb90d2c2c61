"""How much of the latent code is in use, and how much it tells about the data."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.metrics._validation import code_table, host_array

ACTIVE = 0.01  # the least variance of a posterior mean that counts as active
_ROWS = 1_024  # examples at a time against all others
_EXACT = 1e10  # (μ/σ)² up to which a square may be multiplied out in float64


class MutualInformation(NamedTuple):
    """What z tells about x, in nats, between two bounds."""

    lower: float  # never above log(examples)
    upper: float
    examples: int


def active_units(means: Any, threshold: float = ACTIVE) -> int:
    r"""Latents whose posterior mean varies with the input: :math:`\mathrm{Var}_x[\mu_j(x)] > 0.01`.

    Burda et al., *Importance Weighted Autoencoders*, 2016.

    Args:
        means: posterior means, (examples, latents).
        threshold: the least variance that counts as active.
    """
    values = code_table("means", host_array(means), least=1).astype(np.float64)
    return int((values.var(axis=0) > threshold).sum())


def mutual_information(means: Any, log_variances: Any, seed: int = 0) -> MutualInformation:
    r"""Bounds on :math:`I(x; z) = \mathrm{KL} - \mathrm{KL}(q(z) \| p(z))` of Gaussian posteriors.

    The aggregate posterior q(z) is a mixture of all posteriors. From below, one z per example is set against the
    mixture of the N examples at hand, :math:`\mathrm{E} \log q(z|x) - \log \frac1N \sum_m q(z|x_m)`, which is at most
    log N (Hoffman & Johnson, *ELBO surgery*, 2016; a bound by Poole et al., *On Variational Bounds of Mutual
    Information*, 2019). From above, `aggregate_divergence` takes the place of KL(q(z) || p(z)), which is no smaller.

    Args:
        means, log_variances: (examples, latents).
        seed: of the draws of z.
    """
    mean, log_variance = (
        torch.as_tensor(code_table(name, host_array(given), least=1), device="cpu").double()
        for name, given in (("means", means), ("log_variances", log_variances))
    )
    if mean.shape != log_variance.shape:
        raise ValueError(
            f"means and log_variances must have one shape, got {tuple(mean.shape)} and {tuple(log_variance.shape)}"
        )
    posterior = Posterior(mean, log_variance)
    noise = torch.randn(
        mean.shape, generator=torch.Generator().manual_seed(seed), dtype=mean.dtype, device="cpu"
    )
    z, precision = posterior.sample(noise), (-log_variance).exp()
    own = -0.5 * (noise.square() + log_variance).sum(1)
    distances = _distances(mean, precision)
    scale = log_variance.sum(1)  # what all densities share cancels
    against = torch.cat(
        [torch.logsumexp(-0.5 * (distances(few) + scale), dim=1) for few in z.split(_ROWS)]
    )
    lower = min((own - against).mean().item(), 0.0) + math.log(
        len(mean)
    )  # above zero by rounding alone
    # KL - aggregate_divergence, where the squares of the means cancel: so it is as exact for codes far from zero.
    spread = mean.var(0, correction=0) + log_variance.exp().mean(0)
    upper = max(0.0, 0.5 * (spread.log() - log_variance.mean(0)).sum().item())
    return MutualInformation(
        min(max(0.0, lower), upper), upper, len(mean)
    )  # where they meet, draws may cross them


def _distances(mean: Tensor, precision: Tensor) -> Callable[[Tensor], Tensor]:
    """Σ (z - μ)² / σ² of every z from every posterior: (z, posteriors). As two products, as long as that is exact."""
    if (mean.square() * precision).max() < _EXACT:
        offset = (mean.square() * precision).sum(1)
        return lambda z: z.square() @ precision.T - 2 * z @ (mean * precision).T + offset
    latents = range(mean.shape[1])
    return lambda z: sum((z[:, j, None] - mean[:, j]).square() * precision[:, j] for j in latents)  # type: ignore[return-value]


def aggregate_divergence(mean: Tensor, variance: Tensor) -> Tensor:
    r"""KL of N(mean, variance) from N(0, 1), latent by latent: how far the aggregate posterior is from the prior.

    Of all distributions with these moments the Gaussian is the nearest to the prior, and a product of them no further
    than what they are the marginals of: their sum is a lower bound of :math:`\mathrm{KL}(q(z) \| p(z))`.

    Args:
        mean, variance: moments of z over data and posteriors, (latents,).
    """
    return gaussian_kl(Posterior(mean, variance.log()))
