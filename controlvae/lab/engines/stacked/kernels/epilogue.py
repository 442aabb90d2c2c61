"""The common end of a product."""

import triton
import triton.language as tl


@triton.jit
def finish(
    acc,
    out,
    gate,
    offset,
    gate_offset,
    mask,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    SLOPE: tl.constexpr,
):
    """The common end: rectify, or pass a gradient as the rectified activation lets it; then store."""
    if RELU:
        acc = tl.where(acc > 0, acc, SLOPE * acc)
    if GATE:
        acc = tl.where(tl.load(gate + gate_offset, mask=mask, other=0.0) > 0, acc, SLOPE * acc)
    tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)
