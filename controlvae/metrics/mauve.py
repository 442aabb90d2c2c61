"""MAUVE: how far generated text is from human text, computed by mauve-text."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._packages import require
from controlvae.metrics._validation import check_at_least, to_numpy
from controlvae.metrics.image.fid import feature_table


@dataclass(frozen=True)
class MAUVE:
    """Area under the divergence frontier in (0, 1], higher is better, and the frontier integral."""

    score: float
    frontier_integral: float  # lower is better
    estimator: str


def mauve(features_a: Any, features_b: Any, *, buckets: int | None = None, seed: int = 25) -> MAUVE:
    r"""Compute MAUVE between two sets of features of texts.

    .. math:: \mathrm{area}\big\{ (e^{-c \, \mathrm{KL}(Q \| R_\lambda)},
              e^{-c \, \mathrm{KL}(P \| R_\lambda)}) :
              R_\lambda = \lambda P + (1 - \lambda) Q \big\}

    P and Q are the shares of both sets in clusters of their features, c = 5 (Pillutla et al.,
    *MAUVE: measuring the gap between neural text and human text using divergence frontiers*, 2021).
    Published values use the last hidden state of GPT-2 large, 5,000 texts each and 500 clusters.
    Values depend on all three, so compare them at equal settings. Needs `mauve-text`.

    Args:
        features_a: Features of human texts, (texts, features).
        features_b: Features of generated texts, (texts, features).
        buckets: Clusters; None takes a tenth of the smaller set.
        seed: Seed of the clustering.

    Returns:
        The score, the frontier integral and a description of the estimate.
    """
    tables = [
        feature_table(name, values).cpu().numpy()
        for name, values in (("features_a", features_a), ("features_b", features_b))
    ]
    if tables[0].shape[1] != tables[1].shape[1]:
        counts = f"{tables[0].shape[1]} and {tables[1].shape[1]}"
        raise ValueError(f"both sets must have equally many features, got {counts}")
    smallest = min(map(len, tables))
    count = max(2, round(smallest / 10)) if buckets is None else buckets
    check_at_least(2, buckets=count)
    package = require("MAUVE", "mauve", "mauve-text")
    result = package.compute_mauve(
        p_features=tables[0].astype(np.float32),
        q_features=tables[1].astype(np.float32),
        num_buckets=count,
        seed=seed,
        verbose=False,
    )
    return MAUVE(
        score=float(to_numpy(result.mauve)),
        frontier_integral=float(to_numpy(result.frontier_integral)),
        estimator=f"MAUVE (mauve-text), {count} clusters, {tables[0].shape[1]:,} features, "
        f"{len(tables[0]):,} and {len(tables[1]):,} texts",
    )
