"""Explicitness: how well a linear classifier reads each factor from a code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import (
    by_factor_name,
    check_codes,
    factor_labels,
    split_train_test,
    to_numpy,
    warn_if_few_examples,
)
from controlvae.metrics.disentanglement._logistic_regression import logistic_regression


@dataclass(frozen=True)
class Explicitness:
    """Area under the ROC curve of each factor, and their mean. Chance level is 0.5."""

    score: float  # on test examples
    score_learnt: float  # on training examples
    per_factor: dict[str, float] | list[float]  # on test examples
    estimator: str


def explicitness(
    codes: Any,
    factors: Any,
    *,
    learn: int = 10_000,
    test: int = 5_000,
    seed: int = 0,
    factor_names: Sequence[str] | None = None,
) -> Explicitness:
    r"""Compute explicitness, the partner of `modularity`, as disentanglement_lib does.

    .. math:: \frac1K \sum_k \frac1{V_k} \sum_v \mathrm{AUC}_{kv}

    :math:`\mathrm{AUC}_{kv}` is the area under the ROC curve of a logistic regression of factor k
    for its value v against the others: the probability that an example with that value gets a
    higher probability of it than one without (Ridgeway & Mozer, *Learning deep disentangled
    embeddings with the F-statistic loss*, 2018). Codes are standardised by the training examples,
    and the classifier has scikit-learn's default penalty, solved to its optimum. Other libraries
    report 2 · score - 1, which is 0 for chance.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors).
        learn: Training examples. With fewer than `learn + test` examples, all of them are split in
            that proportion.
        test: Test examples.
        seed: Seed of the choice of examples.
        factor_names: Names of the factors in the result.

    Returns:
        The area of each factor and their mean.

    >>> factors = np.arange(4).repeat(50)[:, None]
    >>> codes = np.hstack([factors, factors**2]) / 2
    >>> round(explicitness(codes, factors).score, 2)
    1.0
    """
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    labels = factor_labels(factors, len(values), factor_names)
    warn_if_few_examples(labels)
    rows, others = split_train_test(labels, learn, test, seed, factor_names)
    mean, spread = values[rows].mean(0), values[rows].std(0)
    scaled = (values - mean) / np.where(spread > 0, spread, 1.0)
    learnt: list[float] = []
    tested: list[float] = []
    for column in labels:
        # A value that occurs only among the test examples has no probability, so it is left out.
        present, numbered = np.unique(column[rows], return_inverse=True)
        weight, offset = logistic_regression(scaled[rows], numbered, len(present))
        for chosen, areas in ((rows, learnt), (others, tested)):
            probability = _softmax(scaled[chosen] @ weight + offset)
            areas.append(roc_auc(probability, column[chosen][:, None] == present))
    return Explicitness(
        score=float(np.mean(tested)),
        score_learnt=float(np.mean(learnt)),
        per_factor=by_factor_name(tested, factor_names),
        estimator=f"explicitness (ROC-AUC of a logistic regression, disentanglement_lib), "
        f"{len(rows):,} examples learnt, {len(others):,} tested",
    )


def roc_auc(scores: np.ndarray, is_class: np.ndarray) -> float:
    """Return the mean area under the ROC curve over classes that have both kinds of examples.

    Args:
        scores: Score of each example for each class, (examples, classes). Equal scores count half.
        is_class: Whether the example belongs to the class, same shape.

    >>> roc_auc(np.array([[0.1], [0.4], [0.35], [0.8]]), np.array([[0], [0], [1], [1]]) == 1)
    0.75
    """
    areas = []
    for score, positive in zip(scores.T, is_class.T, strict=True):
        count = int(positive.sum())
        if 0 < count < len(positive):
            rank_sum = average_ranks(score)[positive].sum()
            areas.append((rank_sum - count * (count + 1) / 2) / (count * (len(positive) - count)))
    return float(np.mean(areas)) if areas else float("nan")


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value from 1; equal values share the mean of their ranks.

    >>> average_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, numbered, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return ((ends - counts + 1 + ends) / 2)[numbered]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
