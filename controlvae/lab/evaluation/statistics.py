"""Statistics over seeds: mean and standard deviation of logs, and comparison of two methods."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The permutation test enumerates up to this many splits. Beyond that it draws this many at random.
_MAX_PERMUTATIONS = 20_000


@dataclass(frozen=True)
class SeedStatistics:
    """Mean and standard deviation over seeds, one entry per window of steps."""

    steps: np.ndarray  # last step of each window
    seeds: np.ndarray  # number of seeds that reached it
    mean: np.ndarray
    sd: np.ndarray  # sample standard deviation; NaN for a single seed


def seed_statistics(
    logs: Sequence[Sequence[Mapping[str, Any]]], column: str, window: int
) -> SeedStatistics:
    """Average a logged column within windows of each seed, then over seeds.

    Args:
        logs: Log records of each seed.
        column: Column of the log.
        window: Steps per window.
    """
    by_step: dict[int, list[float]] = defaultdict(list)
    for records in logs:
        for step, value in window_means(records, column, window).items():
            by_step[step].append(value)
    rows = sorted(by_step.items())
    return SeedStatistics(
        steps=np.array([step for step, _ in rows]),
        seeds=np.array([len(values) for _, values in rows]),
        mean=np.array([statistics.fmean(values) for _, values in rows]),
        sd=np.array([sample_sd(values) for _, values in rows]),
    )


def sample_sd(values: Sequence[float]) -> float:
    """Return the sample standard deviation, or NaN for one value or values that are not finite."""
    is_defined = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if is_defined else math.nan


@dataclass(frozen=True)
class Difference:
    """Difference between the means of two methods over their seeds."""

    mean: float
    error: float  # standard error of the difference
    p_value: float  # two-sided permutation test


def compare_means(first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """Compare the means of two methods by a permutation test over their seeds.

    Args:
        first: Scores of one method, one per seed.
        second: Scores of the other method.

    Returns:
        Mean of `first` minus mean of `second`, or None if either has a single seed or a score is
        not finite.
    """
    values = np.array([*first, *second], dtype=np.float64)
    if min(len(first), len(second)) < 2 or not np.isfinite(values).all():
        return None
    values -= values.mean()  # reduces rounding in the sums below
    size, total = len(first), len(values)
    if math.comb(total, size) <= _MAX_PERMUTATIONS:
        splits = np.array(list(itertools.combinations(range(total), size)))
    else:
        rng = np.random.default_rng(0)
        permuted = (rng.permutation(total)[:size] for _ in range(_MAX_PERMUTATIONS))
        splits = np.array([np.arange(size), *permuted])
    means = values[splits].mean(1)
    differences = means - (values.sum() - size * means) / (total - size)
    observed = differences[0]  # the first split is the actual one
    variance = statistics.variance(first) / size + statistics.variance(second) / (total - size)
    tolerance = 1e-9 * np.abs(values).max()
    p_value = float((np.abs(differences) >= abs(observed) - tolerance).mean())
    return Difference(float(observed), math.sqrt(variance), p_value)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for several comparisons (Holm, 1979).

    >>> holm_correction([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def window_means(
    records: Sequence[Mapping[str, Any]], column: str, window: int
) -> dict[int, float]:
    """Average a logged column within windows of steps, skipping an unfinished last window.

    Args:
        records: Log records of one run. A record at step s covers the steps up to s.
        column: Column of the log.
        window: Steps per window.

    Returns:
        The mean of each window by its last step.
    """
    values: dict[int, list[float]] = defaultdict(list)
    for record in records:
        values[-(-record["step"] // window) * window].append(record[column])
    last = records[-1]["step"] if records else 0
    return {end: statistics.fmean(some) for end, some in values.items() if end <= last}
