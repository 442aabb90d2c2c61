"""A column of the log over several seeds: its mean and its spread, window by window."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


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
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


def windowed(records: Sequence[Mapping[str, Any]], column: str, window: int) -> dict[int, float]:
    """The mean of a column by window. One that the run has not come to the end of is left out, not drawn short."""
    values: dict[int, list[float]] = defaultdict(list)
    for record in records:  # a line logged at step s is about steps up to s
        values[-(-record["step"] // window) * window].append(record[column])
    last = records[-1]["step"] if records else 0
    return {end: statistics.fmean(found) for end, found in values.items() if end <= last}
