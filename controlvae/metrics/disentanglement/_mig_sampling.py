"""Entropy of mixtures of Gaussians, estimated from samples: the arithmetic of `mig_sampled`."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from controlvae.metrics.disentanglement._mig_cpu import add_cells

# Up to this many pairs of draws and encoders, a CPU sums all of them.
_MAX_EXACT_PAIRS = 2**22


def draw_codes(
    mean: Tensor, log_variance: Tensor, generator: torch.Generator
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Draw one z from each posterior, and write the posteriors as parabolas.

    √(2π) N(z; μ, σ²) = 2^(peak - t²) with t = scale · z + shift. The expanded form a z² + b z + c
    would be a matrix product, but it cancels terms of size (μ/σ)², where t only rounds μ. Powers of
    two, because exp2 is 2.7 times as fast as exp on a CPU and the only one in hardware on a GPU.

    Args:
        mean: Posterior means, (examples, latents).
        log_variance: Logarithms of the posterior variances, same shape.
        generator: Generator of the draws.

    Returns:
        z, (latents, examples), and scale, shift and peak of the same shape.
    """
    # The noise is float32 for every dtype, so that all dtypes get the same draws.
    noise = torch.randn(mean.shape, generator=generator).to(mean)
    z = mean + noise * (log_variance / 2).exp()
    scale = math.sqrt(0.5 / math.log(2)) * (log_variance / -2).exp()
    parts = (scale, -mean * scale, log_variance / (-2 * math.log(2)))
    return z.T.contiguous(), tuple(part.T.contiguous() for part in parts)


def mixture_entropy(
    z: Tensor, chosen: Tensor, encoders: tuple[Tensor, ...], members: Tensor
) -> np.ndarray:
    """Return the mean of -ln q over the chosen draws, where q mixes the members' posteriors.

    Args:
        z: One draw per example, (latents, examples).
        chosen: Indices of the draws to average over.
        encoders: Scale, shift and peak of the posteriors, (latents, examples) each.
        members: Indices of the examples in the mixture.

    Returns:
        Entropies in nats, float64 (latents,).
    """
    points = z.index_select(1, chosen.to(z.device))
    parts = (part.index_select(1, members.to(z.device)) for part in encoders)
    mean_log = _log2_sum(points, *parts).double().mean(1) * math.log(2)
    return (math.log(len(members)) + 0.5 * math.log(2 * math.pi) - mean_log).cpu().numpy()


def _log2_sum(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """Return log2 Σ_n 2^(peak_n - (scale_n z + shift_n)²), (latents, draws).

    z is (latents, draws), the others are (latents, encoders).
    """
    # No exponent exceeds the highest peak, so nothing overflows. The encoder of each draw is in
    # the sum and the variances are bounded, so no sum underflows. The maximum is not needed.
    highest = peak.amax(1, keepdim=True)
    is_large = z.device.type == "cpu" and z.shape[1] * scale.shape[1] > _MAX_EXACT_PAIRS
    add = add_cells if is_large else _triton_kernel(z) or add_tiles
    return add(z, scale, shift, peak - highest).log2() + highest


def _triton_kernel(z: Tensor) -> Callable[..., Tensor] | None:
    """Return the Triton kernel if it can run, else None."""
    if not (z.is_cuda and z.dtype == torch.float32):
        return None
    try:
        from controlvae.metrics.disentanglement._mig_kernel import add_densities
    except ImportError:
        return None
    return add_densities


def add_tiles(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """Return Σ_n 2^(peak_n - (scale_n z + shift_n)²), one tile of draws and encoders at a time.

    Args:
        z: Draws, (latents, draws).
        scale: Scales of the posteriors, (latents, encoders).
        shift: Shifts of the posteriors, same shape.
        peak: Logarithms of the peaks to base 2, same shape.

    Returns:
        Sums in float64, (latents, draws).
    """
    tile, width = (2**26, 8192) if z.is_cuda else (2**20, 1024)  # a CPU's tile stays in its cache
    blocks = math.ceil(scale.shape[1] / width)
    height = max(1, tile // (len(z) * math.ceil(scale.shape[1] / blocks)))
    total = torch.zeros_like(z, dtype=torch.float64)
    encoders = (part[:, None].chunk(blocks, 2) for part in (scale, shift, peak))
    for a, b, c in zip(*encoders, strict=True):
        for points, sums in zip(z.split(height, 1), total.split(height, 1), strict=True):
            t = torch.addcmul(b, points[:, :, None], a)  # (latents, height, width)
            sums.add_(torch.addcmul(c, t, t, value=-1, out=t).exp2_().sum(2))
    return total
