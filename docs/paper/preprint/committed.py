"""Read the committed result files, with statistics that several numbers of the preprint need."""

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

RESULTS = Path(__file__).resolve().parents[3] / "results"
Row = dict[str, str]


@cache
def rows(path: str) -> tuple[Row, ...]:
    """Return the rows of a CSV file below results/."""
    with (RESULTS / path).open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def column(path: str, name: str, **wanted: str) -> list[float]:
    """Return a column of the rows whose cells are those wanted.

    Args:
        path: CSV file below results/.
        name: Column.
        wanted: Required cells by column.
    """
    return [
        float(row[name])
        for row in rows(path)
        if row[name] and all(row[key] == value for key, value in wanted.items())
    ]


def last_tenth(path: str, preset: str, quantity: str) -> float:
    """Return the mean of a quantity over the last tenth of the steps of a thinned log."""
    log = [row for row in rows(path) if row["preset"] == preset and row["column"] == quantity]
    end = max(int(row["step"]) for row in log)
    return fmean(float(row["mean"]) for row in log if int(row["step"]) > 0.9 * end)


def text_number(path: str, pattern: str) -> str:
    """Return the first group of a pattern in a Markdown page below results/."""
    found = re.search(pattern, (RESULTS / path).read_text(encoding="utf-8"))
    if found is None:
        raise LookupError(f"{path} has no {pattern!r}")
    return found[1]


def mean_sd(values: Sequence[float], digits: int) -> str:
    """Format a mean and a sample standard deviation as LaTeX."""
    return f"{number(fmean(values), digits)} \\pm {number(stdev(values), digits)}"


def number(value: float, digits: int) -> str:
    """Format a number for LaTeX's math mode, where a hyphen is a minus sign."""
    return f"{value:.{digits}f}"


def exact_interval(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of Clopper and Pearson in percent, by bisection."""

    def tail(share: float, counts: Iterable[int]) -> float:
        return sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in counts)

    def solve(is_below: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if is_below(middle) else (low, middle)
        return 100 * low

    low = 0.0 if count == 0 else solve(lambda p: tail(p, range(count, total + 1)) < 0.025)
    high = 100.0 if count == total else solve(lambda p: tail(p, range(count + 1)) > 0.025)
    return low, high


def fisher_p(first: int, second: int, total: int) -> float:
    """Return the two-sided p-value of Fisher's exact test of two counts of `total` each."""
    both = first + second
    ways = {k: math.comb(total, k) * math.comb(total, both - k) for k in range(both + 1)}
    limit = ways[first] * (1 + 1e-9)
    return sum(count for count in ways.values() if count <= limit) / sum(ways.values())
