"""SAP: difference between the two latents that predict a factor best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import (
    by_factor_name,
    check_codes,
    check_quantities,
    factor_labels,
    split_train_test,
    to_numpy,
)


@dataclass(frozen=True)
class SAP:
    """Gap of each factor, their mean, and the predictabilities behind them."""

    score: float  # mean over the factors
    per_factor: dict[str, float] | list[float]  # by name if names were given
    predictability: list[list[float]]  # accuracy, or R² of continuous factors: (factors, latents)
    estimator: str


def sap(
    codes: Any,
    factors: Any,
    *,
    continuous: bool = False,
    learn: int = 10_000,
    test: int = 5_000,
    seed: int = 0,
    factor_names: Sequence[str] | None = None,
) -> SAP:
    r"""Compute the separated attribute predictability, as disentanglement_lib does.

    .. math:: \frac1K \sum_k S_{(1)k} - S_{(2)k}

    S is how well one latent predicts factor k (Kumar et al., *Variational inference of disentangled
    latent concepts from unlabeled observations*, 2018). For a continuous factor it is the squared
    correlation over all examples. For a discrete factor it is the test accuracy of a linear support
    vector machine on that latent: scikit-learn's LinearSVC(C=0.01, class_weight="balanced"), as in
    disentanglement_lib, solved here to its optimum by Newton's method. (The paper thresholds a
    latent.) The penalty makes it depend on the scale of a latent, and a line separates many classes
    badly. For ordered factors `continuous=True` is more informative.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, or any numbers if continuous, (examples, factors).
        continuous: Treat factors as quantities.
        learn: Training examples. With fewer than `learn + test` examples, all of them are split in
            that proportion.
        test: Test examples.
        seed: Seed of the choice of examples.
        factor_names: Names of the factors in the result.

    Returns:
        The gap of each factor and their mean.

    >>> factors = [[0, 0], [0, 1], [1, 0], [1, 1]]
    >>> sap([[0, 0], [0, 1], [1, 1], [1, 2]], factors, continuous=True).per_factor
    [0.5, 0.5]
    """
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    if continuous:
        table = _squared_correlation(check_quantities(factors, len(values), factor_names), values)
        estimator = f"SAP of continuous factors (squared correlation), {len(values):,} examples"
    else:
        labels = factor_labels(factors, len(values), factor_names)
        rows, others = split_train_test(labels, learn, test, seed, factor_names)
        accuracies = [
            [_test_accuracy(code, column, rows, others) for code in values.T] for column in labels
        ]
        table = np.array(accuracies)
        estimator = (
            "SAP of discrete factors (linear SVM, disentanglement_lib), "
            f"{len(rows):,} examples learnt, {len(others):,} tested"
        )
    ordered = np.sort(table, axis=1)
    gaps = (ordered[:, -1] - ordered[:, -2]).tolist()
    per_factor = by_factor_name(gaps, factor_names)
    return SAP(float(np.mean(gaps)), per_factor, table.tolist(), estimator)


def _squared_correlation(factors: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return R² of each factor and latent, (factors, latents); 0 for a variance below 1e-12."""
    y, z = factors - factors.mean(0), codes - codes.mean(0)
    dead = z.var(0, ddof=1) <= 1e-12
    spread = np.outer((y**2).sum(0), np.where(dead, 1, (z**2).sum(0)))
    return np.where(dead, 0.0, (y.T @ z) ** 2 / spread)


def _test_accuracy(
    code: np.ndarray, labels: np.ndarray, rows: np.ndarray, others: np.ndarray
) -> float:
    """Return the accuracy of a linear SVM on one latent, trained on `rows`, on `others`."""
    values, numbered = np.unique(labels[rows], return_inverse=True)
    slope, offset = linear_svm(code[rows], numbered)
    predicted = values[(np.outer(code[others], slope) + offset).argmax(1)]
    return float((predicted == labels[others]).mean())


def linear_svm(
    x: np.ndarray, labels: np.ndarray, penalty: float = 0.01
) -> tuple[np.ndarray, np.ndarray]:
    r"""Fit a linear SVM on one input, for each class against the rest.

    Minimises :math:`\frac12 (w^2 + b^2) + C \sum_i c_i \max(0, 1 - t_i (w x_i + b))^2` with t = ±1.
    As in liblinear, the class has the balanced weight :math:`c = n / (V n_v)` and the rest has
    weight 1. With two classes, each has its balanced weight.

    Args:
        x: Inputs, (examples,).
        labels: Classes 0, 1, ..., (examples,).
        penalty: C, the weight of the errors.

    Returns:
        Slopes and offsets, (classes,) each.
    """
    counts = np.bincount(labels)
    balanced = len(x) / (len(counts) * counts)
    is_class = labels[:, None] == np.arange(len(counts))  # (examples, classes)
    sign = np.where(is_class, 1.0, -1.0)
    rest_weight = balanced[::-1] if len(counts) == 2 else 1.0
    weight = penalty * np.where(is_class, balanced, rest_weight)
    powers = np.stack([np.ones_like(x), x, x**2])  # (3, examples)
    line = np.zeros((2, len(counts)))  # offset and slope

    def loss(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        short = 1 - sign * (powers[:2].T @ line)
        return (line**2).sum(0) / 2 + (weight * short.clip(min=0) ** 2).sum(0), short > 0

    height, active = loss(line)
    for _ in range(100):
        # Step to the minimum of the parabola of the examples that are now within the margin.
        curvature = 2 * weight * active
        (s0, s1, s2), (t0, t1) = powers @ curvature, powers[:2] @ (curvature * sign)
        s0, s2 = s0 + 1, s2 + 1
        step = np.stack([s2 * t0 - s1 * t1, s0 * t1 - s1 * t0]) / (s0 * s2 - s1**2) - line
        if np.abs(step).max() <= 1e-9 * (1 + np.abs(line).max()):
            break
        for _ in range(30):  # halve the step while it increases the loss
            lower, within = loss(line + step)
            climbs = lower > height + 1e-12 * np.abs(height)
            if not climbs.any():
                break
            step = np.where(climbs, step / 2, step)
        line, height, active = line + step, lower, within
    return line[1], line[0]
