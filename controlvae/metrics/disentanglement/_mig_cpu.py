"""The sum under `mig_sampled` on a host: posteriors that all but coincide count as one, and only near ones count.

A latent's posteriors are Gaussians on a line. Those of a latent that is not in use are all alike; those of one that is
are narrow, so that few of them reach a given z. Together that leaves a few per cent of the sum, or less.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

# Widths of a cell, in standard deviations and in their logarithm. The one Gaussian that stands for a cell has its mean
# and its variance; what is left is of fourth order in the first and second in the other: at worst some 1e-3 of a
# density near its peak, both ways, so that an entropy is off by 1e-6 nats or less, at worst by 1e-4.
_APART, _WIDER = 0.1, 0.04
_REACH = 8.5  # standard deviations: a density is 2e-16 of its peak there
_DRAWS, _CELLS = 128, 4096  # of a tile, which stays in the cache


def add_cells(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """Σ_n 2^(peak_n - (scale_n z + shift_n)²): z is (latents, draws), the others (latents, encoders). float64."""
    parts = (each.double().numpy() for each in (scale, shift, peak))
    rows = zip(z, *parts, strict=True)
    return torch.stack([_along_a_line(points, *encoders) for points, *encoders in rows])


def _along_a_line(z: Tensor, scale: np.ndarray, shift: np.ndarray, peak: np.ndarray) -> Tensor:
    """The same of one latent."""
    order = z.argsort()
    total, zero = torch.zeros(len(z), dtype=torch.float64), torch.zeros((), dtype=z.dtype)
    tiles = list(zip(z[order].split(_DRAWS), total.split(_DRAWS), strict=True))
    lowest, highest = (np.array([points[end].item() for points, _ in tiles]) for end in (0, -1))
    for width, means, narrow, heights in _cells(scale, shift, peak):
        a, b, h = (
            torch.from_numpy(each).to(z.dtype) for each in (narrow, -narrow * means, heights)
        )
        firsts, lasts = (
            means.searchsorted(lowest - _REACH * width),
            means.searchsorted(highest + _REACH * width),
        )
        for (points, sums), first, last in zip(tiles, firsts.tolist(), lasts.tolist(), strict=True):
            for left in range(first, last, _CELLS):
                near = slice(left, min(left + _CELLS, last))
                t = torch.addcmul(b[near], points[:, None], a[near])
                sums.add_(torch.addcmul(zero, t, t, value=-1, out=t).exp2_() @ h[near])
    return torch.empty_like(total).index_copy_(0, order, total)


def _cells(
    scale: np.ndarray, shift: np.ndarray, peak: np.ndarray
) -> Iterator[tuple[float, np.ndarray, np.ndarray, np.ndarray]]:
    """Gaussians that stand for all, an octave of widths at a time: the largest; means in order, scales and heights."""
    means, sigmas = -shift / scale, math.sqrt(0.5 / math.log(2)) / scale
    masses = np.exp2(peak) * sigmas  # of a Gaussian, but for a constant
    octaves = np.floor(np.log2(sigmas)).astype(np.int64)
    for octave in np.unique(octaves):
        here = np.flatnonzero(octaves == octave)
        m, s, w = means[here], sigmas[here], masses[here]
        wider = np.round(np.log(s) / _WIDER)
        along = np.round(m / (_APART * np.exp(wider * _WIDER)))
        wider, along = ((each - each.min()).astype(np.int64) for each in (wider, along))
        _, cell = np.unique(along * (int(wider.max()) + 1) + wider, return_inverse=True)
        mass = np.bincount(cell, w)
        mean = np.bincount(cell, w * m) / mass
        variance = np.bincount(cell, w * (s**2 + (m - mean[cell]) ** 2)) / mass
        order = mean.argsort()
        sigma = np.sqrt(variance[order])
        yield (
            float(sigma.max()),
            mean[order],
            math.sqrt(0.5 / math.log(2)) / sigma,
            mass[order] / sigma,
        )
