"""SAP: how much better the best latent alone predicts a factor than the second best does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import (
    classes,
    code_table,
    host_array,
    learn_and_test,
    named,
    quantities,
)


@dataclass(frozen=True)
class SAP:
    """A gap per factor, their mean, and how they were estimated."""

    score: float  # mean over the factors
    per_factor: dict[str, float] | list[float]  # by name where names were given
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
    r"""Separated attribute predictability, as disentanglement_lib computes it.

    .. math:: \frac1K \sum_k S_{(1)k} - S_{(2)k}

    Kumar et al., *Variational inference of disentangled latent concepts from unlabeled observations*, 2018. Of a
    continuous factor S is the squared correlation with a latent, over all examples. Of a discrete one it is the
    accuracy, on examples not learnt from, of a linear support vector machine on that latent alone: scikit-learn's
    LinearSVC(C=0.01, class_weight="balanced"), as in disentanglement_lib, solved here to its optimum by Newton's
    method. (The paper cuts a latent by thresholds.) Its penalty makes it depend on the scale of a latent, and a
    line tells many classes apart badly: for factors with an order, `continuous=True` says more.

    Args:
        codes: (examples, latents).
        factors: integer classes, or any numbers where continuous, (examples, factors).
        continuous: take factors as quantities.
        learn: examples to learn from; with fewer than `learn + test`, all are used in that proportion.
        test: examples to test on.
        seed: of the choice of examples.
        factor_names: what to call the factors in the result.

    >>> sap([[0, 0], [0, 1], [1, 1], [1, 2]], [[0, 0], [0, 1], [1, 0], [1, 1]], continuous=True).per_factor
    [0.5, 0.5]
    """
    values = code_table("codes", host_array(codes)).astype(np.float64)
    if continuous:
        table = _squared_correlation(quantities(factors, len(values), factor_names), values)
        estimator = f"SAP of continuous factors (squared correlation), {len(values):,} examples"
    else:
        columns = classes(factors, len(values), factor_names)
        rows, others = learn_and_test(columns, learn, test, seed, factor_names)
        table = np.array(
            [[_accuracy(code, labels, rows, others) for code in values.T] for labels in columns]
        )
        estimator = (
            f"SAP of discrete factors (linear SVM, disentanglement_lib), {len(rows):,} examples learnt, "
            f"{len(others):,} tested"
        )
    ordered = np.sort(table, axis=1)
    gaps = (ordered[:, -1] - ordered[:, -2]).tolist()
    return SAP(float(np.mean(gaps)), named(gaps, factor_names), table.tolist(), estimator)


def _squared_correlation(factors: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """R² of each factor with each latent, (factors, latents); 0 of a latent whose variance is below 1e-12."""
    y, z = factors - factors.mean(0), codes - codes.mean(0)
    dead = z.var(0, ddof=1) <= 1e-12
    spread = np.outer((y**2).sum(0), np.where(dead, 1, (z**2).sum(0)))
    return np.where(dead, 0.0, (y.T @ z) ** 2 / spread)


def _accuracy(code: np.ndarray, labels: np.ndarray, rows: np.ndarray, others: np.ndarray) -> float:
    """How often a linear SVM on one latent is right about the examples it has not seen."""
    values, numbered = np.unique(labels[rows], return_inverse=True)
    slope, offset = linear_svm(code[rows], numbered)
    predicted = values[(np.outer(code[others], slope) + offset).argmax(1)]
    return float((predicted == labels[others]).mean())


def linear_svm(
    x: np.ndarray, labels: np.ndarray, penalty: float = 0.01
) -> tuple[np.ndarray, np.ndarray]:
    r"""Slope and offset for each class against the rest, of x (examples,) and labels 0, 1, ...: (classes,) each.

    The optimum of :math:`\frac12 (w^2 + b^2) + C \sum_i c_i \max(0, 1 - t_i (w x_i + b))^2` with t = ±1. As in
    liblinear, balanced weights :math:`c = n / (V n_v)` go to the class, and 1 to the rest (with two classes: to each
    its own).
    """
    counts = np.bincount(labels)
    balanced = len(x) / (len(counts) * counts)
    own = labels[:, None] == np.arange(len(counts))  # (examples, classes)
    sign = np.where(own, 1.0, -1.0)
    weight = penalty * np.where(own, balanced, balanced[::-1] if len(counts) == 2 else 1.0)
    powers = np.stack([np.ones_like(x), x, x**2])  # (3, examples)
    line = np.zeros((2, len(counts)))  # offset and slope

    def loss(line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        short = 1 - sign * (powers[:2].T @ line)
        return (line**2).sum(0) / 2 + (weight * short.clip(min=0) ** 2).sum(0), short > 0

    height, active = loss(line)
    for _ in range(100):
        # The parabola of the examples now within the margin has its lowest point here.
        held = 2 * weight * active
        (s0, s1, s2), (t0, t1) = powers @ held, powers[:2] @ (held * sign)
        s0, s2 = s0 + 1, s2 + 1
        step = np.stack([s2 * t0 - s1 * t1, s0 * t1 - s1 * t0]) / (s0 * s2 - s1**2) - line
        if np.abs(step).max() <= 1e-9 * (1 + np.abs(line).max()):
            break
        for _ in range(30):  # halve where that would climb
            lower, within = loss(line + step)
            climbs = lower > height + 1e-12 * np.abs(height)
            if not climbs.any():
                break
            step = np.where(climbs, step / 2, step)
        line, height, active = line + step, lower, within
    return line[1], line[0]
