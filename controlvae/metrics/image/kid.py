"""Kernel inception distance (KID) between two sets of features, without bias."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from controlvae.metrics._validation import check_at_least
from controlvae.metrics.image.fid import feature_table


@dataclass(frozen=True)
class KID:
    """Mean and standard deviation over subsets. An unbiased estimate can be negative."""

    score: float
    deviation: float | None  # None for a single subset
    estimator: str


def kid(
    features_a: Any,
    features_b: Any,
    *,
    subsets: int = 100,
    subset_size: int = 1_000,
    degree: int = 3,
    seed: int = 0,
) -> KID:
    r"""Compute the kernel inception distance between two sets of features.

    .. math:: \mathrm{MMD}^2 = \mathrm{E}[k(a, a') + k(b, b') - 2 k(a, b)], \qquad
              k(x, y) = (x^\top y / d + 1)^3

    Bińkowski et al., *Demystifying MMD GANs*, 2018. The unbiased estimate is averaged over random
    subsets of both sets, drawn without replacement, as published. Unlike FID its expectation does
    not depend on the number of examples, so it suits small samples.

    Args:
        features_a: Features, (examples, features).
        features_b: Features of the other set, (examples, features).
        subsets: Number of subsets. A single one is used if it contains all examples of both sets.
        subset_size: Examples from each set; at most the size of the smaller set.
        degree: Degree of the kernel.
        seed: Seed of the subsets.

    Returns:
        The distance and its standard deviation over subsets.

    >>> kid([[0.0], [1.0]], [[1.0], [2.0]]).score
    9.5
    """
    check_at_least(1, subsets=subsets, degree=degree)
    check_at_least(2, subset_size=subset_size)
    a, b = feature_table("features_a", features_a), feature_table("features_b", features_b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"both sets must have equally many features, got {a.shape[1]} and {b.shape[1]}"
        )
    b = b.to(a.device)
    size = min(subset_size, len(a), len(b))
    times = 1 if size == len(a) == len(b) else subsets
    generator = torch.Generator().manual_seed(seed)
    estimates = []
    for _ in range(times):
        rows_a, rows_b = (
            torch.randperm(len(each), generator=generator)[:size].to(a.device) for each in (a, b)
        )
        estimates.append(_mmd(a[rows_a], b[rows_b], degree))
    values = torch.stack(estimates)
    return KID(
        score=values.mean().item(),
        deviation=values.std(correction=0).item() if times > 1 else None,
        estimator=f"KID, {a.shape[1]:,} features, polynomial kernel of degree {degree}, "
        f"{len(a):,} and {len(b):,} examples, {times} {'subsets' if times > 1 else 'subset'} of "
        f"{size:,}",
    )


def _mmd(x: Tensor, y: Tensor, degree: int) -> Tensor:
    """Return the unbiased estimate for two sets of equal size m, without pairs (x, x)."""
    m, d = x.shape
    within = sum(
        kernel.sum() - kernel.diagonal().sum()
        for kernel in ((z @ z.T / d + 1) ** degree for z in (x, y))
    )
    return within / (m * (m - 1)) - 2 * ((x @ y.T / d + 1) ** degree).mean()
