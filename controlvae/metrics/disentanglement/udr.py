"""Unsupervised disentanglement ranking (UDR): do models of several seeds agree, without labels?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from controlvae.metrics._validation import check_codes, to_numpy
from controlvae.metrics.disentanglement.explicitness import average_ranks

_SHRINKAGE = 0.1  # weight of the absolute value, as in disentanglement_lib
_SWEEPS = 10_000
_TOLERANCE = 1e-10

Similarity = Literal["lasso", "spearman"]


@dataclass(frozen=True)
class UDR:
    """Score of each model, and the agreement of each pair."""

    scores: list[float]  # median agreement of the others with a model; rank models by it
    pairs: list[list[float]]  # (from, to); 0 on the diagonal
    estimator: str


def udr(
    codes: Sequence[Any],
    kl: Sequence[Any] | None = None,
    *,
    similarity: Similarity = "lasso",
    min_kl: float = 0.01,
) -> UDR:
    r"""Compute UDR, which ranks models of several seeds without labels.

    .. math::
        \mathrm{UDR}_{ij} = \frac12 \Big(\frac1{A_j} \sum_b \frac{r_b^2}{\sum_a |R_{ab}|} +
                            \frac1{A_i} \sum_a \frac{r_a^2}{\sum_b |R_{ab}|}\Big), \qquad
        \mathrm{UDR}_j = \mathrm{median}_{i \ne j} \, \mathrm{UDR}_{ij}

    :math:`R_{ab}` says how latent a of model i predicts latent b of model j: the coefficients of a
    lasso with weight 0.1 on standardised codes, or Spearman's rank correlation. :math:`r` is the
    largest of a row or column. Two models that agree up to the order and sign of latents score 1,
    or 0.9 with the lasso, which shrinks. Entangled models find different rotations and score low
    (Duan et al., *Unsupervised model selection for variational disentangled representation
    learning*, 2020; disentanglement_lib). Latents whose KL is at most `min_kl` are left out.

    Compare models with each other, not with those of another set: the score depends on its company.
    Collapsed models agree too, so look at their KL.

    Args:
        codes: Posterior means of the same examples by each model, (examples, latents) each. Models
            may differ in their number of latents.
        kl: KL of each latent for each model, (latents,) each, in nats. Without it every latent that
            varies is used.
        similarity: How latents of two models are compared.
        min_kl: KL up to which a latent is left out.

    Returns:
        The score of each model and the agreement of each pair.

    >>> a = np.random.default_rng(0).normal(size=(500, 2))
    >>> udr([a, -a[:, ::-1], a @ [[0.7, 0.7], [-0.7, 0.7]]]).scores[0] > 0.4
    True
    """
    if similarity not in ("lasso", "spearman"):
        raise ValueError(f"similarity must be 'lasso' or 'spearman', got {similarity!r}")
    if len(codes) < 2:
        raise ValueError(f"UDR compares at least 2 models, got {len(codes)}")
    tables = [_standardised(number, table) for number, table in enumerate(codes)]
    if len({len(table) for table in tables}) > 1:
        counts = ", ".join(str(len(table)) for table in tables)
        raise ValueError(f"all models need codes of the same examples, got {counts} rows")
    used = _used_latents(tables, kl, min_kl)
    compare = _lasso if similarity == "lasso" else _rank_correlation
    pairs = np.zeros((len(tables), len(tables)))
    for i, source in enumerate(tables):
        for j, target in enumerate(tables):
            if i != j:
                table = compare(source * used[i], target * used[j])
                pairs[i, j] = relative_strength(table[np.ix_(used[i], used[j])])
    scores = [float(np.median(np.delete(column, j))) for j, column in enumerate(pairs.T)]
    return UDR(
        scores=scores,
        pairs=pairs.tolist(),
        estimator=f"UDR ({similarity}, Duan et al. 2020), {len(tables)} models, "
        f"{len(tables[0]):,} examples",
    )


def relative_strength(similarity: np.ndarray) -> float:
    """Return how close a table of similarities is to one entry per row and column.

    Args:
        similarity: Similarities (latents of one model, latents of the other), none negative.

    >>> relative_strength(np.array([[0.0, 1.0], [1.0, 0.0]]))
    1.0
    """
    if not similarity.size:
        return 0.0
    scores = []
    for axis in (0, 1):
        total = similarity.sum(axis)
        strength = similarity.max(axis) ** 2 / np.where(total > 0, total, 1)
        scores.append(float(strength.mean()))
    return sum(scores) / 2


def _standardised(number: int, table: Any) -> np.ndarray:
    name = f"codes[{number}]"
    values = check_codes(name, to_numpy(table), min_latents=1).astype(np.float64)
    spread = values.std(0)
    return (values - values.mean(0)) / np.where(spread > 0, spread, 1.0)


def _used_latents(
    tables: Sequence[np.ndarray], kl: Sequence[Any] | None, min_kl: float
) -> list[np.ndarray]:
    """Return for each model which of its latents are compared."""
    varying = [np.asarray(table.any(axis=0)) for table in tables]
    if kl is None:
        return varying
    rows = [to_numpy(row).astype(np.float64) for row in kl]
    shapes, expected = [row.shape for row in rows], [(table.shape[1],) for table in tables]
    if shapes != expected:
        raise ValueError(
            f"kl must have one number per latent of each model, {expected}, got {shapes}"
        )
    return [(row > min_kl) & own for row, own in zip(rows, varying, strict=True)]


def _lasso(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return |w| of a lasso from each source to each target, (sources, targets).

    Coordinate descent on ½ mean (y - x w)² + 0.1 Σ |w|, for all targets at once.
    """
    gram, moment = source.T @ source / len(source), source.T @ target / len(source)
    weight = np.zeros_like(moment)
    for _ in range(_SWEEPS):
        before = weight.copy()
        for a in np.flatnonzero(gram.diagonal() > 0):
            rest = moment[a] - gram[a] @ weight + gram[a, a] * weight[a]
            weight[a] = np.sign(rest) * (np.abs(rest) - _SHRINKAGE).clip(min=0) / gram[a, a]
        if np.abs(weight - before).max() < _TOLERANCE:
            break
    return np.abs(weight)


def _rank_correlation(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return |Spearman's rank correlation| of each pair, (sources, targets); 0 for constants."""
    ranked = []
    for table in (source, target):
        ranks = np.stack([average_ranks(column) for column in table.T], axis=1)
        ranks -= ranks.mean(0)
        length = np.sqrt((ranks**2).sum(0))
        ranked.append(ranks / np.where(length > 0, length, 1.0))
    return np.abs(ranked[0].T @ ranked[1])
