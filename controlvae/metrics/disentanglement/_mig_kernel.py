"""The sum under `mig_sampled` as one Triton kernel: exponent, power and sum stay in registers."""

# Triton's own dialect: kernel arguments carry no types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

_DRAWS = 64  # per program
_ENCODERS = 64  # per turn of its loop: 32 running sums a thread, enough work to hide three loads
_WARPS = 4


@triton.jit
def _add_kernel(
    z, scale, shift, peak, out, draws, encoders, DRAWS: tl.constexpr, ENCODERS: tl.constexpr
):
    latent = tl.program_id(1)
    row = tl.program_id(0) * DRAWS + tl.arange(0, DRAWS)
    point = tl.load(z + latent * draws + row, mask=row < draws, other=0.0)
    # A running sum for each draw and each place in the block of encoders, added up once at the end: no reduction
    # inside the loop, and each float32 sum has a 64th of the terms, so it loses little to rounding.
    total = tl.zeros((DRAWS, ENCODERS), dtype=tl.float32)
    for first in range(0, encoders, ENCODERS):
        column = first + tl.arange(0, ENCODERS)
        inside = column < encoders
        at = latent * encoders + column
        a = tl.load(scale + at, mask=inside, other=0.0)
        b = tl.load(shift + at, mask=inside, other=0.0)
        c = tl.load(
            peak + at, mask=inside, other=float("-inf")
        )  # 2^-inf = 0: past the end adds nothing
        t = point[:, None] * a[None, :] + b[None, :]
        total += tl.exp2(c[None, :] - t * t)
    tl.store(out + latent * draws + row, tl.sum(total, axis=1), mask=row < draws)


def add_densities(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """Σ_n 2^(peak_n - (scale_n z + shift_n)²): z is (latents, draws), the others (latents, encoders), all float32."""
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
