"""InfoMEC: modularity, explicitness and compactness of a code, measured by information."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from controlvae.metrics._validation import (
    by_factor_name,
    check_at_least,
    check_codes,
    factor_labels,
    to_numpy,
    warn_if_few_examples,
)
from controlvae.metrics.disentanglement._information import entropy, factor_information
from controlvae.metrics.disentanglement._logistic_regression import logistic_regression

_ACTIVE_RANGE = 1 / 20  # of the largest range of a latent, as in the authors' code
_ITERATIONS = 100  # scikit-learn's default, which decides the result for separable classes
_NOISE = 1e-10  # breaks ties between equal codes, as in scikit-learn


@dataclass(frozen=True)
class InfoMEC:
    """Three scores, at most 1 and higher is better, and the information behind them."""

    infom: float  # modularity: 1 if each active latent tells about one factor alone
    infoe: float  # explicitness: 1 if a linear classifier predicts every factor
    infoc: float  # compactness: 1 if one latent tells all there is about each factor
    per_factor: dict[str, float] | list[float]  # explicitness
    normalised_information: list[list[float]]  # I(z_j; y_k) / H(y_k), (factors, latents)
    active: list[int]  # latents that InfoM and InfoC use
    estimator: str


def infomec(
    codes: Any,
    factors: Any,
    *,
    discrete: bool = False,
    neighbours: int = 10,
    seed: int = 0,
    factor_names: Sequence[str] | None = None,
) -> InfoMEC:
    r"""Compute InfoM, InfoE and InfoC.

    .. math::
        \mathrm{InfoM} = \frac{\frac1A \sum_j \max_k R_{kj} / \sum_k R_{kj} - 1/K}{1 - 1/K}, \qquad
        \mathrm{InfoC} = \frac{\frac1K \sum_k \max_j R_{kj} / \sum_j R_{kj} - 1/A}{1 - 1/A}, \qquad
        \mathrm{InfoE} = \frac1K \sum_k \frac{H_0(y_k) - H(y_k \mid z)}{H_0(y_k)}

    :math:`R_{kj} = I(z_j; y_k) / H(y_k)` for K factors and the A active latents, those whose range
    is above a twentieth of the largest. :math:`H(y_k \mid z)` is the cross-entropy of a linear
    classifier of all latents without a penalty, :math:`H_0 = \ln V_k` that of one that sees nothing
    (Hsu et al., *Disentanglement via Latent Quantization*, 2023, and their released code).

    The information of a continuous latent is the nearest-neighbour estimate of Ross, *Mutual
    information between discrete and continuous data sets*, 2014, which scikit-learn computes too. A
    discrete latent is counted. Where the released code divides zero by zero, because a latent tells
    nothing or only one is active, the ratio is the least possible (1/K or 1/A), or compactness is 1
    for factors that the only active latent tells about.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors), at least two factors.
        discrete: Treat each value of a latent as a symbol, for quantised codes.
        neighbours: Neighbours of the estimate for continuous latents.
        seed: Seed of the noise of relative size 1e-10 that breaks ties.
        factor_names: Names of the factors in the result.

    Returns:
        The three scores and the information behind them.

    >>> import numpy as np
    >>> factors = np.indices((4, 4)).reshape(2, -1).T.repeat(20, axis=0)
    >>> scores = infomec(factors, factors, discrete=True)
    >>> round(scores.infom, 3), round(scores.infoe, 3), round(scores.infoc, 3)
    (1.0, 1.0, 1.0)
    """
    check_at_least(1, neighbours=neighbours)
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    labels = factor_labels(factors, len(values), factor_names, min_factors=2)
    warn_if_few_examples(labels)
    if discrete:
        table = _counted_information(values, labels)
    else:
        table = _neighbour_information(values, labels, neighbours, seed)
    ranges = np.ptp(values, axis=0)
    is_active = ranges > (0 if discrete else _ACTIVE_RANGE * ranges.max())
    infom, infoc = modularity_and_compactness(table[:, is_active])
    inputs = _one_hot(values) if discrete else _standardise(values)
    explained = [_predictive_information(inputs, column) for column in labels]
    kind = "discrete latents" if discrete else f"{neighbours} neighbours"
    return InfoMEC(
        infom=infom,
        infoe=float(np.mean(explained)),
        infoc=infoc,
        per_factor=by_factor_name(explained, factor_names),
        normalised_information=table.tolist(),
        active=np.flatnonzero(is_active).tolist(),
        estimator=f"InfoMEC (Hsu et al. 2023), {kind}, {len(values):,} examples",
    )


def modularity_and_compactness(information: np.ndarray) -> tuple[float, float]:
    """Return InfoM and InfoC of normalised information, (factors, active latents).

    >>> modularity_and_compactness(np.array([[1.0, 0.0], [0.0, 0.5]]))
    (1.0, 1.0)
    """
    factors, latents = information.shape
    if latents == 0:
        return 0.0, 0.0
    largest_share = [_largest_share(information, axis) for axis in (0, 1)]
    infom = (largest_share[0].mean() - 1 / factors) / (1 - 1 / factors)
    if latents == 1:
        return float(infom), float((information[:, 0] > 0).mean())
    return float(infom), float((largest_share[1].mean() - 1 / latents) / (1 - 1 / latents))


def _largest_share(information: np.ndarray, axis: int) -> np.ndarray:
    """Return max / sum along an axis, or the least possible value where all are 0."""
    total = information.sum(axis)
    share = information.max(axis) / np.where(total > 0, total, 1)
    return np.where(total > 0, share, 1 / information.shape[axis])


def _counted_information(values: np.ndarray, labels: Sequence[np.ndarray]) -> np.ndarray:
    """Return I(z_j; y_k) / H(y_k) of discrete latents, (factors, latents)."""
    symbols = [np.unique(column, return_inverse=True)[1] for column in values.T]
    table = np.empty((len(labels), len(symbols)))
    for k, column in enumerate(labels):
        for j, symbol in enumerate(symbols):
            shape = (int(column.max()) + 1, int(symbol.max()) + 1)
            cells = np.ravel_multi_index((column, symbol), shape)
            joint = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
            information, largest = factor_information(joint[:, None])
            table[k, j] = max(0.0, information[0]) / largest
    return table


def _neighbour_information(
    values: np.ndarray, labels: Sequence[np.ndarray], neighbours: int, seed: int
) -> np.ndarray:
    """Return I(z_j; y_k) / H(y_k) of continuous latents, (factors, latents)."""
    rng, table = np.random.default_rng(seed), np.empty((len(labels), values.shape[1]))
    entropies = [entropy(np.bincount(column) / len(column)) for column in labels]
    for j, code in enumerate(values.T):
        spread = code.std()
        scaled = code / (spread if spread > 0 else 1.0)
        size = _NOISE * max(1.0, float(np.abs(scaled).mean()))
        scaled = scaled + size * rng.standard_normal(len(code))
        for k, column in enumerate(labels):
            table[k, j] = neighbour_information(scaled, column, neighbours) / entropies[k]
    return table


def neighbour_information(code: np.ndarray, labels: np.ndarray, neighbours: int) -> float:
    """Estimate the information of one latent about a factor from nearest neighbours, in nats.

    Args:
        code: Distinct values, (examples,).
        labels: Labels of the factor, (examples,).
        neighbours: Neighbours within a value of the factor; fewer where there are fewer examples.

    Returns:
        ψ(N) + E ψ(k) - E ψ(N_y) - E ψ(m), where m counts the examples that are nearer than the
        k-th neighbour of the same value; 0 if that is negative.
    """
    counts = np.bincount(labels)
    repeated = counts[labels] > 1  # a value that occurs once has no neighbour
    code, labels = code[repeated], labels[repeated]
    if not len(code):
        return 0.0
    radius, k = np.empty(len(code)), np.empty(len(code))
    order = np.lexsort((code, labels))
    present = counts[counts > 1]
    ends = present.cumsum()
    for start, end in zip(ends - present, ends, strict=True):
        rows = order[start:end]
        k[rows] = min(neighbours, len(rows) - 1)
        radius[rows] = np.nextafter(_neighbour_distance(code[rows], int(k[rows[0]])), 0)
    nearer = _count_within(np.sort(code), code, radius)
    total, within, of_value, near = (
        _digamma(part).mean() for part in (np.array([len(code)]), k, counts[labels], nearer)
    )
    return max(0.0, float(total + within - of_value - near))


def _neighbour_distance(ordered: np.ndarray, k: int) -> np.ndarray:
    """Return the distance of each sorted value to its k-th nearest neighbour."""
    count, nearest = len(ordered), np.full(len(ordered), np.inf)
    for below in range(k + 1):  # the k nearest are a window of k + 1 values with so many below
        middle = slice(below, count - (k - below))
        left = ordered[middle] - ordered[: count - k]
        right = ordered[k:] - ordered[middle]
        nearest[middle] = np.minimum(nearest[middle], np.maximum(left, right))
    return nearest


def _count_within(ordered: np.ndarray, code: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Count the sorted values within a radius of each value, itself included."""
    low = np.searchsorted(ordered, code - radius, "left")
    high = np.searchsorted(ordered, code + radius, "right")
    last = len(ordered) - 1
    for _ in range(2):  # the sums above are rounded, the differences decide
        low += code - ordered[low.clip(max=last)] > radius
        low -= (low > 0) & (code - ordered[(low - 1).clip(min=0)] <= radius)
        high -= ordered[(high - 1).clip(min=0)] - code > radius
        high += (high <= last) & (ordered[high.clip(max=last)] - code <= radius)
    return high - low


def _digamma(values: np.ndarray) -> np.ndarray:
    return torch.digamma(torch.as_tensor(values, dtype=torch.float64)).numpy()


def _predictive_information(inputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of the entropy of a factor that a linear classifier explains."""
    classes = int(labels.max()) + 1
    weight, offset = logistic_regression(
        inputs, labels, classes, penalty=0.0, balanced=True, max_iter=_ITERATIONS
    )
    logits = torch.from_numpy(inputs @ weight + offset)
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).item()
    return 1 - loss / math.log(classes)


def _standardise(values: np.ndarray) -> np.ndarray:
    spread = values.std(0)
    return (values - values.mean(0)) / np.where(spread > 0, spread, 1.0)


def _one_hot(values: np.ndarray) -> np.ndarray:
    columns = []
    for column in values.T:
        symbols, numbered = np.unique(column, return_inverse=True)
        columns.append(np.eye(len(symbols))[numbered])
    return np.concatenate(columns, axis=1)
