"""Triton kernel for the sum of densities in `mig_sampled`: all intermediates stay in registers."""

# Arguments of Triton kernels have no types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

_DRAWS = 64  # per program
# Encoders per iteration: 32 running sums per thread, enough work to hide three loads.
_ENCODERS = 64
_WARPS = 4


@triton.jit
def _add_kernel(
    z, scale, shift, peak, out, draws, encoders, DRAWS: tl.constexpr, ENCODERS: tl.constexpr
):
    latent = tl.program_id(1)
    row = tl.program_id(0) * DRAWS + tl.arange(0, DRAWS)
    point = tl.load(z + latent * draws + row, mask=row < draws, other=0.0)
    # One running sum per draw and per position in the block of encoders, reduced once at the end.
    # The loop has no reduction, and each float32 sum has a 64th of the terms, so it rounds little.
    total = tl.zeros((DRAWS, ENCODERS), dtype=tl.float32)
    for first in range(0, encoders, ENCODERS):
        column = first + tl.arange(0, ENCODERS)
        inside = column < encoders
        at = latent * encoders + column
        a = tl.load(scale + at, mask=inside, other=0.0)
        b = tl.load(shift + at, mask=inside, other=0.0)
        # 2^-inf = 0, so positions past the end add nothing.
        c = tl.load(peak + at, mask=inside, other=float("-inf"))
        t = point[:, None] * a[None, :] + b[None, :]
        total += tl.exp2(c[None, :] - t * t)
    tl.store(out + latent * draws + row, tl.sum(total, axis=1), mask=row < draws)


def add_densities(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """Return Σ_n 2^(peak_n - (scale_n z + shift_n)²), (latents, draws), in float32.

    Args:
        z: Draws, (latents, draws).
        scale: Scales of the posteriors, (latents, encoders).
        shift: Shifts of the posteriors, same shape.
        peak: Logarithms of the peaks to base 2, same shape.
    """
    z, scale, shift, peak = (part.contiguous() for part in (z, scale, shift, peak))
    latents, draws = z.shape
    out = torch.empty_like(z)
    with torch.cuda.device_of(z):
        _add_kernel[(triton.cdiv(draws, _DRAWS), latents)](
            z,
            scale,
            shift,
            peak,
            out,
            draws,
            scale.shape[1],
            DRAWS=_DRAWS,
            ENCODERS=_ENCODERS,
            num_warps=_WARPS,
        )
    return out
