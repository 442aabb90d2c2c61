"""The paper's tuning rules: how large a proportional gain may be, and where a set point may lie."""

import math
from typing import NamedTuple

from controlvae.diagnostics.collapse import COLLAPSE_THRESHOLD


class TargetRange(NamedTuple):
    """Set points from the plain VAE's own KL to the highest at which the ELBO may still gain."""

    low: float
    high: float


def gain_bound(kl_vae: float, d: float) -> float:
    r"""The most nats of reconstruction that d nats of KL above the plain VAE's can gain: :math:`\sqrt{4(2 KL + d)}`.

    The theorem of section 3.3, for a log-likelihood that changes by at most one nat per unit of z.

    >>> gain_bound(118.0, 27.0)
    32.4345...
    """
    if not (kl_vae >= 0 and d >= -2 * kl_vae):
        raise ValueError(
            f"kl_vae must be zero or positive and d at least -2 of it, got {kl_vae} and {d}"
        )
    return math.sqrt(4 * (2 * kl_vae + d))


def target_range(kl_vae: float) -> TargetRange:
    r"""Set points that may improve the ELBO of a VAE whose KL is `kl_vae`: :math:`0 \le d \le 2 + 2\sqrt{2 KL + 1}`.

    Section 3.3. The theorem behind it bounds the gain from above, so the range is necessary and not sufficient:
    take it as a heuristic.

    >>> target_range(118.0)
    TargetRange(low=118.0, high=150.7896...)
    """
    if not (math.isfinite(kl_vae) and kl_vae >= 0):
        raise ValueError(
            f"kl_vae must be zero or positive, got {kl_vae}; it is the plain VAE's KL in nats per example"
        )
    return TargetRange(kl_vae, kl_vae + 2 + 2 * math.sqrt(2 * kl_vae + 1))


class Advice(NamedTuple):
    """Where a set point may lie, and one to begin with."""

    target: float  # to begin with
    band: TargetRange  # the paper's: from the plain VAE's KL up
    reachable: TargetRange  # the KLs that weights between the law's bounds lead to
    words: str

    def __str__(self) -> str:
        return (
            f"begin with a target of {self.target:.3g} nats\n"
            f"  the plain VAE's KL  {self.band.low:.1f} nats\n"
            f"  the paper's band    {self.band.low:.1f} to {self.band.high:.1f}\n"
            f"  within reach        {_reach(self.reachable)}\n"
            f"  {self.words}"
        )


def _reach(reachable: TargetRange) -> str:
    return (
        "not measured"
        if math.isinf(reachable.high)
        else f"{reachable.low:.1f} to {reachable.high:.1f}"
    )


def advise(kl_vae: float, lowest: float = 0.0, highest: float = math.inf) -> Advice:
    """A set point for a VAE whose own KL is `kl_vae`, when the ELBO or the pictures are what is wanted.

    Four fifths up the paper's band, where its own choices lie (145 for a VAE at 118, 155 at 127), and within reach.

    Args:
        kl_vae: the KL at a weight of one, in nats per example.
        lowest, highest: the KL at the largest and at the smallest weight the law may give, where they were measured.

    >>> round(advise(118.0).target)
    144
    """
    band = target_range(kl_vae)
    if not lowest <= kl_vae <= highest:
        raise ValueError(
            f"kl_vae must lie between lowest and highest, got {kl_vae} outside [{lowest}, {highest}]"
        )
    if highest < COLLAPSE_THRESHOLD:
        raise ValueError(
            f"no set point is within reach: at the least weight the KL is {highest:.2g} nats all the same; train "
            f"longer, or look for a mistake in the encoder or in its KL"
        )
    if kl_vae < COLLAPSE_THRESHOLD:
        start = min(3.0, highest)
        words = "the code has collapsed: a set point brings it into use, for some of the ELBO; begin low and raise it"
        return Advice(start, band, TargetRange(lowest, highest), words)
    wanted, ceiling = band.low + 0.8 * (band.high - band.low), kl_vae + 0.8 * (highest - kl_vae)
    if ceiling < wanted:
        words = (
            "less than the band allows: with the weight near its lower bound the KL goes no higher"
        )
        return Advice(ceiling, band, TargetRange(lowest, highest), words)
    words = "four fifths up the paper's band, which is a heuristic: its theorem bounds the gain from above"
    return Advice(wanted, band, TargetRange(lowest, highest), words)
