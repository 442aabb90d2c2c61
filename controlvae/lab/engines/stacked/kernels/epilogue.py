"""Shared matmul epilogue: ReLU, gating and store."""

import triton
import triton.language as tl


@triton.jit
def store_with_epilogue(
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
    """Apply the ReLU or its gradient to an accumulator tile and store it.

    Fusing both into the matmul saves a pass over the feature map.

    Args:
        acc: Accumulator tile, float32.
        out: Pointer to the output.
        gate: Pointer to the ReLU output whose sign gates a gradient; used if `GATE`.
        offset: Offsets of the tile in `out`.
        gate_offset: Offsets of the tile in `gate`.
        mask: True for the elements that exist.
        RELU: Rectify `acc`.
        GATE: Scale `acc` by `SLOPE` wherever the gate is not positive.
        SLOPE: Slope of the rectifier below zero; 0 for ReLU.
    """
    if RELU:
        acc = tl.where(acc > 0, acc, SLOPE * acc)
    if GATE:
        acc = tl.where(tl.load(gate + gate_offset, mask=mask, other=0.0) > 0, acc, SLOPE * acc)
    tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)
