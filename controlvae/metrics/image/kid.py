"""Kernel inception distance: how well a kernel tells two sets of features apart, without bias."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from controlvae.metrics._validation import at_least
from controlvae.metrics.image.fid import feature_table


@dataclass(frozen=True)
class KID:
    """Mean and standard deviation over subsets. An unbiased estimate may be below zero."""

    score: float
    deviation: float | None  # None for one subset
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
    r"""Squared maximum mean discrepancy under the kernel :math:`(x^\top y / d + 1)^3`, unbiased.

    Bińkowski et al., *Demystifying MMD GANs*, 2018. The mean over random subsets of both sets, each without repetition,
    as published. Unlike FID its expectation does not depend on the number of examples, so it is the one for few.

    Args:
        features_a: (examples, features).
        features_b: (examples, features).
        subsets: how many; one is enough, and taken, where it holds all examples of both sets.
        subset_size: examples from each set; all of the smaller set where it has fewer.
        degree: of the kernel.
        seed: of the choice of subsets.
    """
    at_least(1, subsets=subsets, degree=degree)
    at_least(2, subset_size=subset_size)
    a, b = feature_table("features_a", features_a), feature_table("features_b", features_b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"both sets need the same features, got {a.shape[1]} and {b.shape[1]}")
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
        estimator=f"KID, {a.shape[1]:,} features, polynomial kernel of degree {degree}, {len(a):,} and {len(b):,} "
        f"examples, {times} {'subsets' if times > 1 else 'subset'} of {size:,}",
    )


def _mmd(x: Tensor, y: Tensor, degree: int) -> Tensor:
    """The unbiased estimate, both sets of one size m: a pair of an example with itself is left out."""
    m, d = x.shape
    within = sum(
        kernel.sum() - kernel.diagonal().sum()
        for kernel in ((z @ z.T / d + 1) ** degree for z in (x, y))
    )
    return within / (m * (m - 1)) - 2 * ((x @ y.T / d + 1) ** degree).mean()
