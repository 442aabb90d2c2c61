"""Numbers over several seeds: mean and spread of the log, window by window; the difference of two methods."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_DEALS = 20_000  # ways to deal seeds out to two methods that are all looked at; of more, as many at random


@dataclass(frozen=True)
class Spread:
    """Arrays of one entry per window; a window is called by its last step."""

    steps: np.ndarray
    seeds: np.ndarray  # how many got that far
    mean: np.ndarray
    sd: np.ndarray  # the sample standard deviation over seeds; NaN where there is one alone


def spread(logs: Sequence[Sequence[Mapping[str, Any]]], column: str, window: int) -> Spread:
    """Means of so many steps within each seed first, then mean and spread over the seeds."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for records in logs:
        for step, value in windowed(records, column, window).items():
            by_step[step].append(value)
    rows = sorted(by_step.items())
    return Spread(
        steps=np.array([step for step, _ in rows]),
        seeds=np.array([len(values) for _, values in rows]),
        mean=np.array([statistics.fmean(values) for _, values in rows]),
        sd=np.array([sample_sd(values) for _, values in rows]),
    )


def sample_sd(values: Sequence[float]) -> float:
    """The sample standard deviation; NaN where a value is none or infinite, or there is one alone."""
    return (
        statistics.stdev(values)
        if len(values) > 1 and all(map(math.isfinite, values))
        else math.nan
    )


@dataclass(frozen=True)
class Difference:
    """Of the means of two methods over their seeds."""

    mean: float
    error: float  # its standard error
    chance: float  # of means as far apart, were seeds dealt out to the two at random: a permutation test


def difference(ones: Sequence[float], others: Sequence[float]) -> Difference | None:
    """What some seeds have more than others; None where either is a single one, or a value is no number."""
    values = np.array([*ones, *others], dtype=np.float64)
    if min(len(ones), len(others)) < 2 or not np.isfinite(values).all():
        return None
    values -= values.mean()  # sums of what is left round little
    many, total = len(ones), len(values)
    if math.comb(total, many) <= _DEALS:
        dealt = np.array(list(itertools.combinations(range(total), many)))
    else:
        rng = np.random.default_rng(0)
        dealt = np.array([np.arange(many), *(rng.permutation(total)[:many] for _ in range(_DEALS))])
    first = values[dealt].mean(1)
    apart = first - (values.sum() - many * first) / (total - many)
    found = apart[0]  # the seeds as they are
    error = math.sqrt(
        statistics.variance(ones) / many + statistics.variance(others) / (total - many)
    )
    return Difference(
        float(found),
        error,
        float((np.abs(apart) >= abs(found) - 1e-9 * np.abs(values).max()).mean()),
    )


def windowed(records: Sequence[Mapping[str, Any]], column: str, window: int) -> dict[int, float]:
    """The mean of a column by window. One that the run has not come to the end of is left out, not drawn short."""
    values: dict[int, list[float]] = defaultdict(list)
    for record in records:  # a line logged at step s is about steps up to s
        values[-(-record["step"] // window) * window].append(record[column])
    last = records[-1]["step"] if records else 0
    return {end: statistics.fmean(found) for end, found in values.items() if end <= last}
