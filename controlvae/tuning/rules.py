"""Rules of the paper for the set point (section 3.3)."""

import math
from typing import NamedTuple


class TargetRange(NamedTuple):
    """Range of set points, from the KL of the plain VAE up to the largest useful one."""

    low: float
    high: float


def gain_bound(kl_vae: float, d: float) -> float:
    r"""Return an upper bound on the gain in reconstruction, :math:`\sqrt{4(2\,\mathrm{KL} + d)}`.

    The bound is in nats, for a KL that is d nats above that of the plain VAE. It is the theorem of
    section 3.3, for a log-likelihood that changes by at most one nat per unit of z.

    >>> gain_bound(118.0, 27.0)
    32.4345...
    """
    if not (kl_vae >= 0 and d >= -2 * kl_vae):
        raise ValueError(
            "kl_vae must be zero or positive and d at least -2 * kl_vae, "
            f"got kl_vae={kl_vae}, d={d}"
        )
    return math.sqrt(4 * (2 * kl_vae + d))


def target_range(kl_vae: float) -> TargetRange:
    r"""Return the set points that may improve the ELBO of a VAE whose KL is `kl_vae`.

    .. math::  \mathrm{KL} \le v \le \mathrm{KL} + 2 + 2\sqrt{2\,\mathrm{KL} + 1}

    Section 3.3. The theorem behind it bounds the gain from above, so the range is necessary and not
    sufficient. Use it as a heuristic.

    >>> target_range(118.0)
    TargetRange(low=118.0, high=150.7896...)
    """
    if not (math.isfinite(kl_vae) and kl_vae >= 0):
        raise ValueError(
            f"kl_vae must be zero or positive, got {kl_vae}; it is the KL of the plain VAE in nats "
            "per example"
        )
    return TargetRange(kl_vae, kl_vae + 2 + 2 * math.sqrt(2 * kl_vae + 1))
