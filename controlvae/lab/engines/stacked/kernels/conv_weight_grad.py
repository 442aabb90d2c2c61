"""Weight and bias gradients of 4x4, stride-2 convolutions and transposed convolutions.

The sum over pixels is split (split-K): each split writes its own partial sum, and the optimiser
adds the partial sums as it reads them. `conv_indexing.py` explains the geometry and the layouts.
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


@triton.jit
def _accumulate(
    acc, large_sum, small_sum, left, right, ones, LARGE_BIAS: tl.constexpr, PRECISION: tl.constexpr
):
    """Add one tile of pixels to the sums of a weight gradient and of its bias gradient.

    The bias gradient is a product with ones: tensor cores sum faster than a reduction across warps.
    """
    acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if LARGE_BIAS:
        large_sum = tl.dot(left, ones, large_sum, input_precision=PRECISION)
    else:
        small_sum = tl.dot(tl.trans(ones), right, small_sum, input_precision=PRECISION)
    return acc, large_sum, small_sum


@triton.jit(do_not_specialize=["per_split"])
def conv_weight_grad_kernel(
    large,
    small,
    grad,
    bias_grad,
    blocks,
    per_split,
    grad_model,
    bias_model,
    H: tl.constexpr,
    W: tl.constexpr,
    CL: tl.constexpr,
    CS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LARGE_BIAS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute dW[tap] = Σ_pixels largeᵀ · small and the bias gradient.

    m are block elements, n their small neighbours, and the sum is over blocks. `LARGE_BIAS` selects
    the bias: that of the large map (transposed convolution) or of the small map (convolution).
    """
    model = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    m_tiles: tl.constexpr = (4 * CL + BLOCK_M - 1) // BLOCK_M
    m = tl.program_id(0) % m_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) // m_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    pixels = blocks // ((H + 1) * (W + 1)) * H * W
    large += model * pixels * 4 * CL
    small += model * pixels * CS
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    ones = tl.full((BLOCK_K, 16), 1.0, dtype=DOT)
    large_sum = tl.zeros((BLOCK_M, 16), dtype=tl.float32)
    small_sum = tl.zeros((16, BLOCK_N), dtype=tl.float32)
    end = min((split + 1) * per_split, blocks)
    for start in range(split * per_split, end, BLOCK_K):
        block = start + tl.arange(0, BLOCK_K)
        example, p, q = unravel(block, H + 1, W + 1)
        large_offset, large_mask = block_offsets(example, p, q, m, block < end, H, W, CL)
        left = tl.trans(tl.load(large + large_offset, mask=large_mask, other=0.0).to(DOT))
        small_offset, small_mask = neighbour_offsets(example, p, q, n, block < end, H, W, CS)
        right = tl.load(small + small_offset, mask=small_mask, other=0.0).to(DOT)
        acc, large_sum, small_sum = _accumulate(
            acc, large_sum, small_sum, left, right, ones, LARGE_BIAS, PRECISION
        )
    mask = (m < 4 * CL)[:, None] & (n < 4 * CS)[None, :]
    offset = weight_offsets(m[:, None], n[None, :], CL, CS)
    tl.store(grad + model * grad_model + split * 16 * CL * CS + offset, acc, mask=mask)
    bias_grad += model * bias_model
    # The 16 columns (rows) of the product with ones are equal, hence the factor 1 / 16.
    if LARGE_BIAS:
        # Each large pixel is in one block, so the four pixels of a block give four partial sums.
        if tl.program_id(0) < m_tiles:
            total = tl.sum(large_sum, axis=1) * (1 / 16)
            tl.store(bias_grad + split * 4 * CL + m, total, mask=m < 4 * CL)
    elif tl.program_id(0) % m_tiles == 0:
        # Each small pixel is the neighbour with i = j = 0 of exactly one block.
        central = (n >= CS) & (n < 2 * CS)
        target = bias_grad + split * CS + n - CS
        tl.store(target, tl.sum(small_sum, axis=0) * (1 / 16), mask=central)


@triton.jit(do_not_specialize=["per_split"])
def conv_weight_grad_narrow_kernel(
    large,
    small,
    grad,
    bias_grad,
    positions,
    per_split,
    grad_model,
    bias_model,
    H: tl.constexpr,
    W: tl.constexpr,
    CL: tl.constexpr,
    CS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LARGE_BIAS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute the same as `conv_weight_grad_kernel` for few large channels.

    m = (tap, large channel), and the sum is over small pixels. All sixteen taps fit into one tile,
    so each small pixel is read once, together with its whole patch.
    """
    model = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    large += model * positions * 4 * CL
    small += model * positions * CS
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    ones = tl.full((BLOCK_K, 16), 1.0, dtype=DOT)
    large_sum = tl.zeros((BLOCK_M, 16), dtype=tl.float32)
    small_sum = tl.zeros((16, BLOCK_N), dtype=tl.float32)
    first = split * per_split
    end = min(first + per_split, positions)
    # The compiler does not pipeline loads of single numbers: the next patches are prefetched here.
    patches = load_patches(large, first + tl.arange(0, BLOCK_K), end, m, H, W, CL)
    for start in range(first, end, BLOCK_K):
        position = start + tl.arange(0, BLOCK_K)
        next_patches = load_patches(large, position + BLOCK_K, end, m, H, W, CL)
        small_mask = (position < end)[:, None] & (column < CS)[None, :]
        pixels = small + position[:, None] * CS + column[None, :]
        right = tl.load(pixels, mask=small_mask, other=0.0).to(DOT)
        left = tl.trans(patches.to(DOT))
        acc, large_sum, small_sum = _accumulate(
            acc, large_sum, small_sum, left, right, ones, LARGE_BIAS, PRECISION
        )
        patches = next_patches
    grad += model * grad_model + split * 16 * CL * CS
    target = grad + m[:, None] * CS + column[None, :]
    tl.store(target, acc, mask=(m < 16 * CL)[:, None] & (column < CS)[None, :])
    bias_grad += model * bias_model
    if LARGE_BIAS:
        if tl.program_id(0) == 0:
            _store_large_bias(bias_grad, large_sum, m, split, CL)
    else:
        target = bias_grad + split * CS + column
        tl.store(target, tl.sum(small_sum, axis=0) * (1 / 16), mask=column < CS)


@triton.jit
def _store_large_bias(bias_grad, large_sum, m, split, CL: tl.constexpr):
    """Store the bias gradient of the large map from the sums over m = (tap, channel).

    The four inner taps, rows and columns 1 and 2 of the kernel, together meet every large pixel
    exactly once.
    """
    r, c = m // (4 * CL), m // CL % 4
    inner = (r >= 1) & (r <= 2) & (c >= 1) & (c <= 2)
    total = tl.sum(large_sum, axis=1) * (1 / 16)
    for channel in tl.static_range(CL):
        selected = tl.where(inner & (m % CL == channel), total, 0.0)
        tl.store(bias_grad + split * CL + channel, tl.sum(selected, axis=0))
