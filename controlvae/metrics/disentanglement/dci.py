"""Disentanglement, completeness, informativeness: how the importance of latents for factors is spread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from controlvae.metrics._validation import (
    classes,
    code_tensor,
    host_array,
    learn_and_test,
    named,
    place,
)
from controlvae.metrics.disentanglement._gradient_boosting import boost


@dataclass(frozen=True)
class DCI:
    """Three scores, higher is better, and what they were read from."""

    disentanglement: float  # 1 where each latent matters for one factor alone
    completeness: float  # 1 where one latent alone matters for each factor
    informativeness: float  # accuracy on examples that were not learnt from, mean over the factors
    informativeness_learnt: float  # accuracy on those that were
    per_factor: dict[str, float] | list[float]  # accuracy on examples not learnt from
    importance: list[list[float]]  # (latents, factors); each column adds up to 1
    estimator: str


@torch.no_grad()
def dci(
    codes: Any,
    factors: Any,
    *,
    learn: int = 10_000,
    test: int = 5_000,
    seed: int = 0,
    factor_names: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> DCI:
    """DCI with boosted trees, as disentanglement_lib computes it.

    Eastwood & Williams, *A framework for the quantitative evaluation of disentangled representations*, 2018. Trees
    predict each factor from the codes; `importance_scores` turns their importances into the first two scores. As in
    disentanglement_lib (Locatello et al. 2019) there are 100 rounds of trees of depth 3, 10,000 examples to learn from
    and 5,000 to test on, and informativeness is an accuracy (in the paper an error). Its trees are scikit-learn's; ours
    are a twin (`boosting.py`) that is about forty times as fast: 9 s on a CPU core for 2D Shapes, 1.3 s on an H200. Of
    at most 2,048 examples every value is a cut of its own, as theirs are, and it is two and a half times as fast: 9 s
    for 2,000 examples and factors of 40 and of 3 values. On the same 10,000 examples of a trained model theirs gave
    0.563, 0.617, 0.816 and ours 0.574, 0.627, 0.828. Scores rise with `learn`, so compare like with like. A GPU adds in
    no fixed order, and two calls there may differ in the fourth digit.

    Args:
        codes: (examples, latents). Trees tell them apart as float32, as scikit-learn's do; for float64 the sums are in
            float64, for all else in float32, three times as fast.
        factors: integer classes, (examples, factors), two factors or more.
        learn: examples to learn from; with fewer than `learn + test`, all are used in that proportion.
        test: examples to test on.
        seed: of the choice of examples, and of the trees.
        factor_names: what to call the factors in the result.
        device: where to compute; by default where `codes` are.
    """
    table = code_tensor("codes", codes)
    where = place(device, table)
    columns = classes(factors, len(table), factor_names, least=2)
    rows, others = learn_and_test(columns, learn, test, seed, factor_names)
    chosen = table[torch.from_numpy(np.concatenate([rows, others])).to(table.device)].to(where)
    importance, learnt, tested = [], [], []
    for labels in columns:
        values, numbered = np.unique(
            labels[rows], return_inverse=True
        )  # a value only tested is never predicted
        fit = boost(chosen, torch.from_numpy(numbered).to(chosen.device), seed=seed)
        right = values[fit.predicted.cpu().numpy()] == np.concatenate(
            [labels[rows], labels[others]]
        )
        importance.append(fit.importance.cpu().numpy())
        learnt.append(float(right[: len(rows)].mean()))
        tested.append(float(right[len(rows) :].mean()))
    matrix = np.stack(importance, axis=1)
    disentanglement, completeness = importance_scores(matrix)
    return DCI(
        disentanglement=disentanglement,
        completeness=completeness,
        informativeness=float(np.mean(tested)),
        informativeness_learnt=float(np.mean(learnt)),
        per_factor=named(tested, factor_names),
        importance=matrix.tolist(),
        estimator=f"DCI with boosted trees (disentanglement_lib), {len(rows):,} examples learnt, {len(others):,} "
        "tested",
    )


def importance_scores(importance: Any) -> tuple[float, float]:
    r"""Disentanglement and completeness of importances (latents, factors), none negative.

    .. math:: D = \sum_j \rho_j \Big(1 - \frac{H(P_{j\cdot})}{\ln K}\Big), \qquad
              C = \sum_k \rho_k \Big(1 - \frac{H(P_{\cdot k})}{\ln L}\Big)

    with P the rows or columns made to add up to 1, and ρ the share of a row or a column in all importance; a latent of
    no importance has no share. Both are 0 where there is no importance at all.

    >>> importance_scores([[1, 0], [0, 1], [0, 0]])
    (1.0, 1.0)
    """
    matrix = host_array(importance).astype(np.float64)
    if matrix.ndim != 2 or min(matrix.shape) < 2:
        raise ValueError(
            f"importance must be (latents, factors) with two or more of each, got shape {matrix.shape}"
        )
    if not (np.isfinite(matrix).all() and (matrix >= 0).all()):
        raise ValueError("importance must be finite and not negative")
    return _concentration(matrix), _concentration(matrix.T)


def _concentration(matrix: np.ndarray) -> float:
    """1 less the entropy of each row as a share of the largest possible, weighed by the row's sum."""
    sums = matrix.sum(1)
    rows = matrix[sums > 0] / sums[sums > 0, None]
    entropies = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(1)
    weights = sums[sums > 0] / max(sums.sum(), 1e-300)
    return float((weights * (1 - entropies / math.log(matrix.shape[1]))).sum())
