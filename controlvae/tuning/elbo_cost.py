r"""Cost in ELBO of a target above the KL of the plain VAE.

At an optimum of the loss, one more nat of KL buys β nats of reconstruction. Each of n used latents
gains half a nat when β falls by a factor of e, so a KL that is d nats above that at β = 1 needs
:math:`\beta(d) = \exp(-2d/n)`. The ELBO loses :math:`\int_0^d (1 - \beta(s))\,ds`.
"""

import math

_RELATIVE_TOLERANCE = 1e-12


def elbo_cost(d: float, latents: int) -> float:
    r"""Return how many nats of ELBO a target costs that is d nats above the plain VAE's KL.

    .. math::  \frac n2 \left(\frac{2d}n - 1 + e^{-2d/n}\right) \approx \frac{d^2}n

    The cost is never negative: β = 1 maximises the ELBO. The formula assumes trained models and n
    latents that are used before and after. It has no free parameter.

    Args:
        d: Nats above the KL of the plain VAE; negative for a target below it.
        latents: Number n of used latents.

    >>> round(elbo_cost(22.9, latents=100), 1)
    4.5
    """
    if not math.isfinite(d):
        raise ValueError(f"d must be a finite number of nats, got {d}")
    _check_latents(latents)
    x = 2 * d / latents
    # expm1 keeps the digits of a small d, where the three terms almost cancel.
    return latents / 2 * (x + math.expm1(-x))


def target_for(elbo_budget: float, kl_vae: float, latents: int) -> float:
    """Return the largest target whose expected cost in ELBO is within a budget.

    Args:
        elbo_budget: Nats of ELBO to spend, zero or positive.
        kl_vae: KL of the plain VAE in nats per example.
        latents: Number of used latents.

    >>> round(target_for(4.5, kl_vae=135.2, latents=100))
    158
    """
    if not (math.isfinite(elbo_budget) and elbo_budget >= 0):
        raise ValueError(f"elbo_budget must be zero or positive, got {elbo_budget} nats")
    if not (math.isfinite(kl_vae) and kl_vae >= 0):
        raise ValueError(f"kl_vae must be zero or positive, got {kl_vae} nats")
    _check_latents(latents)
    low, high = 0.0, elbo_budget + latents  # the cost at d is above d - latents / 2
    while high - low > _RELATIVE_TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if elbo_cost(middle, latents) <= elbo_budget else (low, middle)
    return kl_vae + low


def _check_latents(latents: int) -> None:
    if isinstance(latents, bool) or not isinstance(latents, int) or latents < 1:
        raise ValueError(f"latents must be a positive integer, got {latents!r}")
