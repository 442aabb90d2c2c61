"""MIG-sup: the mutual information gap seen from the latents instead of the factors."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import (
    check_at_least,
    check_codes,
    factor_labels,
    to_numpy,
    warn_if_few_examples,
)
from controlvae.metrics.disentanglement._information import histogram_information
from controlvae.metrics.information import ACTIVE_UNIT_VARIANCE


@dataclass(frozen=True)
class MIGSup:
    """Gap of each latent, and the mean over the active ones."""

    score: float
    per_latent: list[float]  # of all latents
    active: list[int]  # latents in the mean
    estimator: str


def mig_sup(
    codes: Any, factors: Any, *, bins: int = 20, min_variance: float = ACTIVE_UNIT_VARIANCE
) -> MIGSup:
    r"""Compute MIG-sup from a histogram of codes.

    .. math:: \frac1A \sum_j \big(R_{(1)j} - R_{(2)j}\big), \qquad
              R_{kj} = \frac{I(\hat z_j; y_k)}{H(y_k)}

    MIG asks whether a factor is in one latent. This asks whether a latent has one factor, so a
    latent that mixes two factors is punished, which MIG does not see (Li et al., *Progressive
    learning and disentanglement of hierarchical representations*, 2020). Like their code it takes
    the mean over active latents, whose variance is above `min_variance`; `min_variance=0` takes
    all that vary. The information is that of `mig_histogram`.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors), at least two factors.
        bins: Bins per latent.
        min_variance: Variance above which a latent is active.

    Returns:
        The gap of each latent and their mean; 0 if no latent is active.

    >>> mig_sup([[0, 0], [0, 0], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0], [1, 1]]).per_latent
    [1.0, 0.0]
    """
    check_at_least(2, bins=bins)
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    labels = factor_labels(factors, len(values), None, min_factors=2)
    warn_if_few_examples(labels)
    information, entropies = histogram_information(values, labels, bins)
    ordered = np.sort((information / entropies[:, None]).clip(min=0), axis=0)
    gaps = ordered[-1] - ordered[-2]
    active = np.flatnonzero(values.var(0) > min_variance)
    return MIGSup(
        score=float(gaps[active].mean()) if len(active) else 0.0,
        per_latent=gaps.tolist(),
        active=active.tolist(),
        estimator=f"MIG-sup from a histogram of {bins} bins (Li et al. 2020), "
        f"{len(values):,} examples",
    )
