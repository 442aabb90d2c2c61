"""Batches of examples that share the value of one factor, for the FactorVAE and β-VAE scores."""

from collections.abc import Callable, Sequence

import numpy as np

_MAX_NUMBERS = 1 << 23  # codes looked up at a time: 64 MiB


def draw_by_factor(
    labels: Sequence[np.ndarray], make: Callable[..., np.ndarray], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random factor `count` times and compute a statistic for each draw.

    Args:
        labels: Labels of each factor, (examples,).
        make: Function of a factor's labels, a random generator and a number of draws that returns
            one row per draw.
        count: Number of draws.
        seed: Seed of factors and examples.

    Returns:
        The statistics (count, ...) and the factor of each draw (count,).
    """
    rng = np.random.default_rng(seed)
    factor = rng.integers(len(labels), size=count)
    parts = [make(column, rng, int((factor == k).sum())) for k, column in enumerate(labels)]
    drawn = np.empty((count, *parts[0].shape[1:]), dtype=parts[0].dtype)
    for k, part in enumerate(parts):
        drawn[factor == k] = part
    return drawn, factor


def apply_in_chunks(
    function: Callable[..., np.ndarray], latents: int, *rows: np.ndarray
) -> np.ndarray:
    """Apply a function to batches of row indices, few at a time to bound the memory.

    Args:
        function: Function of chunks of `rows` that looks up their codes.
        latents: Latents per code.
        *rows: Row indices, (count, batch) each.

    Returns:
        The results of all chunks, concatenated.
    """
    chunk = max(1, _MAX_NUMBERS // (rows[0].shape[1] * latents))
    starts = range(0, max(1, len(rows[0])), chunk)
    return np.concatenate(
        [function(*(indices[start : start + chunk] for indices in rows)) for start in starts]
    )


def draw_repeated(labels: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw random rows whose label occurs at least twice.

    Args:
        labels: Labels of one factor, (examples,).
        rng: Random generator.
        count: Number of rows.
    """
    rows = np.flatnonzero(np.bincount(labels)[labels] > 1)
    if not len(rows):
        raise ValueError(
            "every value of this factor is unique, so no pairs can be formed; bin it or pass more "
            "examples"
        )
    return rows[rng.integers(len(rows), size=count)]


def draw_partners(labels: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw for each row a random row with the same label.

    Args:
        labels: Labels of one factor, (examples,).
        rows: Row indices of any shape.
        rng: Random generator.
    """
    order, counts = np.argsort(labels, kind="stable"), np.bincount(labels)
    starts = counts.cumsum() - counts
    value = labels[rows]
    return order[starts[value] + (rng.random(rows.shape) * counts[value]).astype(np.int64)]
