"""Modularity: the degree to which each latent depends on a single factor."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import check_at_least, check_codes, factor_labels, to_numpy
from controlvae.metrics.disentanglement._information import histogram_information


@dataclass(frozen=True)
class Modularity:
    """Modularity of each latent, and their mean."""

    score: float
    per_latent: list[float]
    estimator: str


def modularity(codes: Any, factors: Any, *, bins: int = 20) -> Modularity:
    r"""Compute modularity from a histogram of codes, as disentanglement_lib does.

    .. math:: \frac1L \sum_j \Big(1 -
              \frac{\sum_{k \ne k^*} I(\hat z_j; y_k)^2}{(K - 1) \, I(\hat z_j; y_{k^*})^2}\Big)

    with :math:`k^*` the factor that latent j has most information about. A latent without
    information counts as 0 (Ridgeway & Mozer, *Learning deep disentangled embeddings with the
    F-statistic loss*, 2018). Locatello et al. 2019 use the posterior means of 10,000 examples. The
    information is that of `mig_histogram`. All latents have equal weight, also those that carry
    almost no information.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors), at least two factors.
        bins: Bins per latent.

    Returns:
        The modularity of each latent and their mean.

    >>> modularity([[0, 0], [0, 0], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0], [1, 1]]).per_latent
    [1.0, 0.0]
    """
    check_at_least(2, bins=bins)
    values = check_codes("codes", to_numpy(codes))
    labels = factor_labels(factors, len(values), None, min_factors=2)
    information, _ = histogram_information(values, labels, bins)
    information[information < 1e-12] = 0  # rounding error of zero information
    squares = information**2
    largest = squares.max(0)
    rest = (squares.sum(0) - largest) / (len(labels) - 1)
    scores = np.where(largest > 0, 1 - rest / np.where(largest > 0, largest, 1), 0.0).clip(min=0)
    return Modularity(
        score=float(scores.mean()),
        per_latent=scores.tolist(),
        estimator=f"modularity from a histogram of {bins} bins (disentanglement_lib), "
        f"{len(values):,} examples",
    )
