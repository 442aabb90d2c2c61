"""Convolution and transposed convolution, 4x4 with stride 2, as implicit matrix products.

`conv_indexing.py` explains the geometry and the layouts.
"""

import triton
import triton.language as tl

from controlvae.lab.engines.stacked.kernels.conv_indexing import (
    block_offsets,
    load_patches,
    neighbour_offsets,
    unravel,
    weight_offsets,
)
from controlvae.lab.engines.stacked.kernels.epilogue import store_with_epilogue


@triton.jit
def conv_kernel(
    large,
    weight,
    bias,
    gate,
    out,
    positions,
    weight_model,
    bias_model,
    H: tl.constexpr,
    W: tl.constexpr,
    CL: tl.constexpr,
    CS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute small = Σ_tap large · W[tap].

    Rows are small pixels, columns are small channels, and the sum is over k = (tap, large channel).
    """
    model = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    large += model * positions * 4 * CL
    weight += model * weight_model
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, 16 * CL, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = load_patches(large, position, positions, k, H, W, CL).to(DOT)
        mask = (k < 16 * CL)[:, None] & (column < CS)[None, :]
        right = tl.load(weight + k[:, None] * CS + column[None, :], mask=mask, other=0.0).to(DOT)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + model * bias_model + column, mask=column < CS, other=0.0)[None, :]
    offset = model * positions * CS + position[:, None] * CS + column[None, :]
    out_mask = (position < positions)[:, None] & (column < CS)[None, :]
    store_with_epilogue(acc, out, gate, offset, offset, out_mask, RELU, GATE, 0.0)


@triton.jit
def conv_transpose_kernel(
    small,
    weight,
    bias,
    gate,
    out,
    blocks,
    weight_model,
    bias_model,
    H: tl.constexpr,
    W: tl.constexpr,
    CL: tl.constexpr,
    CS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILES: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute large = Σ_tap small · W[tap]ᵀ.

    Rows are blocks, columns are block elements, and the sum is over the small neighbours.

    A program computes `TILES` row tiles one after the other. If `BLOCK_K` covers all of k, the
    weights are loaded once for all of them, and the loads of a tile overlap the previous tile.
    """
    model = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pixels = blocks // ((H + 1) * (W + 1)) * H * W
    small += model * pixels * CS
    weight += model * weight_model
    out += model * pixels * 4 * CL
    if GATE:
        gate += model * pixels * 4 * CL
    single_k_step: tl.constexpr = BLOCK_K >= 4 * CS
    n = tl.arange(0, BLOCK_K)
    right = tl.zeros((BLOCK_K, BLOCK_N), dtype=DOT)
    if single_k_step:
        weight_mask = (n < 4 * CS)[:, None] & (m < 4 * CL)[None, :]
        weight_offset = weight_offsets(m[None, :], n[:, None], CL, CS)
        right = tl.load(weight + weight_offset, mask=weight_mask, other=0.0).to(DOT)
    shift = tl.zeros((BLOCK_N,), dtype=tl.float32)
    if BIAS:
        shift = tl.load(bias + model * bias_model + m % CL, mask=m < 4 * CL, other=0.0)
    for tile in range(TILES):
        block = (tl.program_id(0) * TILES + tile) * BLOCK_M + tl.arange(0, BLOCK_M)
        example, p, q = unravel(block, H + 1, W + 1)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32) + shift[None, :]
        if single_k_step:
            offset, mask = neighbour_offsets(example, p, q, n, block < blocks, H, W, CS)
            left = tl.load(small + offset, mask=mask, other=0.0).to(DOT)
            acc = tl.dot(left, right, acc, input_precision=PRECISION)
        else:
            for start in range(0, 4 * CS, BLOCK_K):
                offset, mask = neighbour_offsets(example, p, q, start + n, block < blocks, H, W, CS)
                left = tl.load(small + offset, mask=mask, other=0.0).to(DOT)
                weight_mask = (start + n < 4 * CS)[:, None] & (m < 4 * CL)[None, :]
                weight_offset = weight_offsets(m[None, :], start + n[:, None], CL, CS)
                right = tl.load(weight + weight_offset, mask=weight_mask, other=0.0).to(DOT)
                acc = tl.dot(left, right, acc, input_precision=PRECISION)
        out_offset, out_mask = block_offsets(example, p, q, m, block < blocks, H, W, CL)
        store_with_epilogue(acc, out, gate, out_offset, out_offset, out_mask, RELU, GATE, 0.0)
