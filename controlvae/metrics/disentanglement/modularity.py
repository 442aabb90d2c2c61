"""Modularity: whether each latent tells about one factor alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import at_least, classes, code_table, host_array
from controlvae.metrics.disentanglement.mig import histogram_information


@dataclass(frozen=True)
class Modularity:
    """A score per latent, and their mean."""

    score: float
    per_latent: list[float]
    estimator: str


def modularity(codes: Any, factors: Any, *, bins: int = 20) -> Modularity:
    r"""Modularity from a histogram of codes, as disentanglement_lib computes it.

    .. math:: \frac1L \sum_j \Big(1 - \frac{\sum_{k \ne k^*} I(\hat z_j; y_k)^2}{(K - 1) \, I(\hat z_j; y_{k^*})^2}\Big)

    with :math:`k^*` the factor that latent j tells most about; a latent that tells nothing counts 0. Ridgeway & Mozer,
    *Learning deep disentangled embeddings with the F-statistic loss*, 2018; Locatello et al. 2019 take the posterior
    means of 10,000 examples. The information is that of `mig_histogram`. It compares a latent with itself only: a
    latent that carries next to nothing weighs as much as any other.

    Args:
        codes: (examples, latents).
        factors: integer classes, (examples, factors), two factors or more.
        bins: bins per latent.

    >>> modularity([[0, 0], [0, 0], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0], [1, 1]]).per_latent
    [1.0, 0.0]
    """
    at_least(2, bins=bins)
    values = code_table("codes", host_array(codes))
    columns = classes(factors, len(values), None, least=2)
    information, _ = histogram_information(values, columns, bins)
    information[information < 1e-12] = 0  # what rounding leaves of nothing
    squares = information**2
    largest = squares.max(0)
    rest = (squares.sum(0) - largest) / (len(columns) - 1)
    scores = np.where(largest > 0, 1 - rest / np.where(largest > 0, largest, 1), 0.0).clip(min=0)
    return Modularity(
        score=float(scores.mean()),
        per_latent=scores.tolist(),
        estimator=f"modularity from a histogram of {bins} bins (disentanglement_lib), {len(values):,} examples",
    )
