"""Rules of the paper for the set point (section 3.3)."""

import math
from typing import NamedTuple

from controlvae.diagnostics.collapse import COLLAPSE_THRESHOLD

# Position in the paper's range at which the paper's own set points lie.
_POSITION_IN_RANGE = 0.8
# First set point for a collapsed code, in nats.
_TARGET_AFTER_COLLAPSE = 3.0


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


class Advice(NamedTuple):
    """Suggested set point, with the range it was chosen from."""

    target: float  # set point to start with
    band: TargetRange  # the paper's range
    reachable: TargetRange  # KL at the bounds of the weight
    reason: str

    def __str__(self) -> str:
        return (
            f"begin with a target of {self.target:.3g} nats\n"
            f"  the plain VAE's KL  {self.band.low:.1f} nats\n"
            f"  the paper's band    {self.band.low:.1f} to {self.band.high:.1f}\n"
            f"  within reach        {_format_reachable(self.reachable)}\n"
            f"  {self.reason}"
        )


def _format_reachable(reachable: TargetRange) -> str:
    if math.isinf(reachable.high):
        return "not measured"
    return f"{reachable.low:.1f} to {reachable.high:.1f}"


def advise(kl_vae: float, lowest: float = 0.0, highest: float = math.inf) -> Advice:
    """Return a set point for a VAE whose KL is `kl_vae`, for a better ELBO or better images.

    It lies at four fifths of the paper's range, like the paper's own set points (145 for a VAE at
    118, 155 for one at 127), and within the reachable range.

    Args:
        kl_vae: KL at a weight of one, in nats per example.
        lowest: KL at the largest weight of the law, if it was measured.
        highest: KL at the smallest weight of the law, if it was measured.

    >>> round(advise(118.0).target)
    144
    """
    band = target_range(kl_vae)
    if not lowest <= kl_vae <= highest:
        raise ValueError(
            f"kl_vae must lie in [lowest, highest] = [{lowest}, {highest}], got {kl_vae}"
        )
    if highest < COLLAPSE_THRESHOLD:
        raise ValueError(
            f"highest must be at least {COLLAPSE_THRESHOLD:g} nats, got {highest:.2g}: no set "
            "point is reachable; train longer, or check the encoder and its KL"
        )
    reachable = TargetRange(lowest, highest)
    if kl_vae < COLLAPSE_THRESHOLD:
        reason = (
            "the code has collapsed: a set point brings it into use, at some cost to the ELBO; "
            "begin low and raise it"
        )
        return Advice(min(_TARGET_AFTER_COLLAPSE, highest), band, reachable, reason)
    preferred = band.low + _POSITION_IN_RANGE * (band.high - band.low)
    ceiling = kl_vae + _POSITION_IN_RANGE * (highest - kl_vae)
    if ceiling < preferred:
        reason = "below the paper's choice: with the weight near its lower bound the KL stays lower"
        return Advice(ceiling, band, reachable, reason)
    reason = (
        "four fifths up the paper's band, which is a heuristic: its theorem bounds the gain from "
        "above"
    )
    return Advice(preferred, band, reachable, reason)
