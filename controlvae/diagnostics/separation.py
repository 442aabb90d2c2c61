"""Label-free sign that a run on 2D Shapes will fail to disentangle: the gap after two latents."""

import math
from collections.abc import Iterable

from torch import Tensor

#: Separation at the deciding step below which a run is predicted to fail. Fixed before the runs
#: that it was tested on (results/disentangling/fresh-seeds.md).
MIN_SEPARATION = 0.85


def latent_separation(kl_per_latent: Iterable[float] | Tensor) -> float:
    r"""Return :math:`S = (k_2 - k_3) / k_1` of the three latents with the largest KL.

    S is near 1 if two latents carry all there is, and 0 if a third carries as much as the second.

    Args:
        kl_per_latent: KL of each latent in nats per example, averaged over some hundred batches.

    >>> round(latent_separation([0.98, 0.0, 0.97, 0.01]), 2)
    0.98
    """
    values = kl_per_latent.detach() if isinstance(kl_per_latent, Tensor) else kl_per_latent
    nats = [float(value) for value in values]
    if len(nats) < 3:
        raise ValueError(f"kl_per_latent needs at least 3 latents, got {len(nats)}")
    first, second, third = sorted(nats, reverse=True)[:3]
    if not (all(map(math.isfinite, nats)) and first > 0):
        raise ValueError(
            f"kl_per_latent must be finite and have a positive largest value, got {nats}"
        )
    return (second - third) / first


def predicts_failure(
    kl_per_latent: Iterable[float] | Tensor, min_separation: float = MIN_SEPARATION
) -> bool:
    """Return True if a run on 2D Shapes is predicted to fail to disentangle.

    The rule was fixed and tested for one situation: ControlVAE's ramp on 2D Shapes at step 60,000
    of 1,500,000, with a target of 1.95 nats. It found 16 of 16 failed runs and flagged 4 of 184
    others. It assumes that two equally important factors, here the positions, come first. On other
    data, ramps or steps it is not known to hold; at step 100,000 of the same runs it fails.

    Args:
        kl_per_latent: KL of each latent in nats per example, averaged over some hundred batches.
        min_separation: Smallest separation of a run that is predicted to succeed.

    >>> predicts_failure([1.03, 0.70, 0.24, 0.0])
    True
    """
    return latent_separation(kl_per_latent) < min_separation
