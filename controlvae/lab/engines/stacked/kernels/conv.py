"""Convolutions and transposed convolutions, and their gradients: patches are never written to memory.

A stride-2 layer with 4x4 kernels links a *large* map (2H, 2W) and a *small* map (H, W): small pixel (h, w) and tap
(r, c) meet large pixel (2h + r - 1, 2w + c - 1). Three products over that relation are all that convolution,
transposed convolution and their gradients need:

    gather   small = Σ_tap large · W[tap]          convolution forward; transposed convolution's input gradient
    spread   large = Σ_tap small · W[tap]ᵀ         transposed convolution forward; convolution's input gradient
    outer    W[tap] = Σ_pixels largeᵀ · small      the weight gradient of both

Cut the large map into *blocks* of two by two pixels, (H + 1) · (W + 1) of them, the first with its corner at (-1, -1).
Block (p, q) then meets the small pixels (p - i, q - j), i and j in {0, 1}, and no others: pixel (a, b) of the block by
tap (2i + a, 2j + b). So a block and the four small pixels around it are two rows of 4 · channels numbers, of which
`spread` is one plain product and `outer` the other, and each row is read in runs of two pixels side by side.

Maps are (models, batch, height, width, channels), weights (models, 4, 4, large channels, small channels).
"""

import triton
import triton.language as tl

from controlvae.lab.engines.stacked.kernels.epilogue import finish


@triton.jit
def _split_position(position, H, W):
    """Pixel number -> (example, row, column)."""
    return position // (H * W), (position // W) % H, position % W


@triton.jit
def _patches(large, position, end, k, H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr):
    """What small pixels meet: the numbers k, (tap row, tap column, large channel), of the sixteen large pixels of each.

    Four pixels of a row lie side by side.
    """
    example, h, w = _split_position(position, H, W)
    y = 2 * h[:, None] + (k // (4 * CL))[None, :] - 1
    x = 2 * w[:, None] + (k // CL % 4)[None, :] - 1
    ok = (
        (y >= 0)
        & (y < 2 * H)
        & (x >= 0)
        & (x < 2 * W)
        & (position < end)[:, None]
        & (k < 16 * CL)[None, :]
    )
    row = ((example * 2 * H)[:, None] + y) * 2 * W + (2 * w - 1)[:, None]
    return tl.load(large + row * CL + (k % (4 * CL))[None, :], mask=ok, other=0.0)


@triton.jit
def gather_kernel(
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
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    large += model * positions * 4 * CL
    weight += model * weight_model
    acc = tl.zeros((ROWS, TILE), dtype=tl.float32)
    for start in range(0, 16 * CL, DEPTH):
        k = start + tl.arange(0, DEPTH)
        left = _patches(large, position, positions, k, H, W, CL).to(DOT)
        known = (k < 16 * CL)[:, None] & (column < CS)[None, :]
        right = tl.load(weight + k[:, None] * CS + column[None, :], mask=known, other=0.0).to(DOT)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + model * bias_model + column, mask=column < CS, other=0.0)[None, :]
    offset = model * positions * CS + position[:, None] * CS + column[None, :]
    finish(
        acc,
        out,
        gate,
        offset,
        offset,
        (position < positions)[:, None] & (column < CS)[None, :],
        RELU,
        GATE,
        0.0,
    )


@triton.jit
def _of_block(example, p, q, m, known, H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr):
    """Where the numbers m, (a, b, large channel), of blocks lie within a model's large map, and whether they do."""
    y = (2 * p - 1)[:, None] + (m // (2 * CL))[None, :]
    x = (2 * q - 1)[:, None] + (m // CL % 2)[None, :]
    ok = (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W) & known[:, None] & (m < 4 * CL)[None, :]
    row = ((example * 2 * H)[:, None] + y) * 2 * W + (2 * q - 1)[:, None]
    return row * CL + (m % (2 * CL))[None, :], ok


@triton.jit
def _around_block(example, p, q, n, known, H: tl.constexpr, W: tl.constexpr, CS: tl.constexpr):
    """The same for the numbers n, (i, 1 - j, small channel), of the four small pixels that blocks meet."""
    y = p[:, None] - (n // (2 * CS))[None, :]
    x = (q - 1)[:, None] + (n // CS % 2)[None, :]
    ok = (y >= 0) & (y < H) & (x >= 0) & (x < W) & known[:, None] & (n < 4 * CS)[None, :]
    row = ((example * H)[:, None] + y) * W + (q - 1)[:, None]
    return row * CS + (n % (2 * CS))[None, :], ok


@triton.jit
def _weight_of(m, n, CL: tl.constexpr, CS: tl.constexpr):
    """Where the weight between number m of a block and number n around it lies: W[2i + a, 2j + b, channels]."""
    r = 2 * (n // (2 * CS)) + m // (2 * CL)
    c = 2 * (1 - n // CS % 2) + m // CL % 2
    return ((r * 4 + c) * CL + m % CL) * CS + n % CS


@triton.jit
def spread_kernel(
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
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    TURNS: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * TILE + tl.arange(0, TILE)
    pixels = blocks // ((H + 1) * (W + 1)) * H * W
    small += model * pixels * CS
    weight += model * weight_model
    out += model * pixels * 4 * CL
    if GATE:
        gate += model * pixels * 4 * CL
    all_at_once: tl.constexpr = DEPTH >= 4 * CS
    n = tl.arange(0, DEPTH)
    right = tl.zeros((DEPTH, TILE), dtype=DOT)
    if all_at_once:  # weights are read once for all turns, and the pixels of a turn while the one before is worked on
        known = (n < 4 * CS)[:, None] & (m < 4 * CL)[None, :]
        right = tl.load(
            weight + _weight_of(m[None, :], n[:, None], CL, CS), mask=known, other=0.0
        ).to(DOT)
    shift = tl.zeros((TILE,), dtype=tl.float32)
    if BIAS:
        shift = tl.load(bias + model * bias_model + m % CL, mask=m < 4 * CL, other=0.0)
    for turn in range(TURNS):
        block = (tl.program_id(0) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        example, p, q = _split_position(block, H + 1, W + 1)
        acc = tl.zeros((ROWS, TILE), dtype=tl.float32) + shift[None, :]
        if all_at_once:
            place, ok = _around_block(example, p, q, n, block < blocks, H, W, CS)
            left = tl.load(small + place, mask=ok, other=0.0).to(DOT)
            acc = tl.dot(left, right, acc, input_precision=PRECISION)
        else:
            for start in range(0, 4 * CS, DEPTH):
                place, ok = _around_block(example, p, q, start + n, block < blocks, H, W, CS)
                left = tl.load(small + place, mask=ok, other=0.0).to(DOT)
                known = (start + n < 4 * CS)[:, None] & (m < 4 * CL)[None, :]
                place = _weight_of(m[None, :], start + n[:, None], CL, CS)
                right = tl.load(weight + place, mask=known, other=0.0).to(DOT)
                acc = tl.dot(left, right, acc, input_precision=PRECISION)
        place, ok = _of_block(example, p, q, m, block < blocks, H, W, CL)
        finish(acc, out, gate, place, place, ok, RELU, GATE, 0.0)


@triton.jit
def _added(
    acc, large_sum, small_sum, left, right, ones, LARGE_BIAS: tl.constexpr, PRECISION: tl.constexpr
):
    """A weight's gradient and its bias's, with some more pixels.

    The bias's is a product with ones: the tensor cores sum faster than a reduction across warps.
    """
    acc = tl.dot(left, right, acc, input_precision=PRECISION)
    if LARGE_BIAS:
        large_sum = tl.dot(left, ones, large_sum, input_precision=PRECISION)
    else:
        small_sum = tl.dot(tl.trans(ones), right, small_sum, input_precision=PRECISION)
    return acc, large_sum, small_sum


@triton.jit(do_not_specialize=["per_part"])
def outer_kernel(
    large,
    small,
    grad,
    bias_grad,
    blocks,
    per_part,
    grad_model,
    bias_model,
    H: tl.constexpr,
    W: tl.constexpr,
    CL: tl.constexpr,
    CS: tl.constexpr,
    SLICE: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    LARGE_BIAS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    slices: tl.constexpr = (4 * CL + SLICE - 1) // SLICE
    m = tl.program_id(0) % slices * SLICE + tl.arange(0, SLICE)
    n = tl.program_id(0) // slices * TILE + tl.arange(0, TILE)
    pixels = blocks // ((H + 1) * (W + 1)) * H * W
    large += model * pixels * 4 * CL
    small += model * pixels * CS
    acc = tl.zeros((SLICE, TILE), dtype=tl.float32)
    ones = tl.full((ROWS, 16), 1.0, dtype=DOT)
    large_sum = tl.zeros((SLICE, 16), dtype=tl.float32)
    small_sum = tl.zeros((16, TILE), dtype=tl.float32)
    end = min((part + 1) * per_part, blocks)
    for start in range(part * per_part, end, ROWS):
        block = start + tl.arange(0, ROWS)
        example, p, q = _split_position(block, H + 1, W + 1)
        place, ok = _of_block(example, p, q, m, block < end, H, W, CL)
        left = tl.trans(tl.load(large + place, mask=ok, other=0.0).to(DOT))
        place, ok = _around_block(example, p, q, n, block < end, H, W, CS)
        right = tl.load(small + place, mask=ok, other=0.0).to(DOT)
        acc, large_sum, small_sum = _added(
            acc, large_sum, small_sum, left, right, ones, LARGE_BIAS, PRECISION
        )
    known = (m < 4 * CL)[:, None] & (n < 4 * CS)[None, :]
    place = _weight_of(m[:, None], n[None, :], CL, CS)
    tl.store(grad + model * grad_model + part * 16 * CL * CS + place, acc, mask=known)
    bias_grad += model * bias_model
    if LARGE_BIAS:
        if (
            tl.program_id(0) < slices
        ):  # each large pixel is in one block: its bias comes in quarters
            total = tl.sum(large_sum, axis=1) * (1 / 16)  # sixteen times the same
            tl.store(bias_grad + part * 4 * CL + m, total, mask=m < 4 * CL)
    elif tl.program_id(0) % slices == 0:  # each small pixel is once the one with i = j = 0
        own = (n >= CS) & (n < 2 * CS)
        tl.store(bias_grad + part * CS + n - CS, tl.sum(small_sum, axis=0) * (1 / 16), mask=own)


@triton.jit(do_not_specialize=["per_part"])
def outer_few_kernel(
    large,
    small,
    grad,
    bias_grad,
    positions,
    per_part,
    grad_model,
    bias_model,
    H: tl.constexpr,
    W: tl.constexpr,
    CL: tl.constexpr,
    CS: tl.constexpr,
    SLICE: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    LARGE_BIAS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`outer_kernel` for a few large channels: small pixels are read once, and all that each meets beside it."""
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    k = tl.arange(0, SLICE)  # (tap, large channel)
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    large += model * positions * 4 * CL
    small += model * positions * CS
    acc = tl.zeros((SLICE, TILE), dtype=tl.float32)
    ones = tl.full((ROWS, 16), 1.0, dtype=DOT)
    large_sum = tl.zeros((SLICE, 16), dtype=tl.float32)
    small_sum = tl.zeros((16, TILE), dtype=tl.float32)
    first = part * per_part
    end = min(first + per_part, positions)
    # Single numbers are beyond the compiler's pipeline: those of the next turn are asked for by hand.
    patches = _patches(large, first + tl.arange(0, ROWS), end, k, H, W, CL)
    for start in range(first, end, ROWS):
        position = start + tl.arange(0, ROWS)
        following = _patches(large, position + ROWS, end, k, H, W, CL)
        known = (position < end)[:, None] & (column < CS)[None, :]
        right = tl.load(small + position[:, None] * CS + column[None, :], mask=known, other=0.0).to(
            DOT
        )
        left = tl.trans(patches.to(DOT))
        acc, large_sum, small_sum = _added(
            acc, large_sum, small_sum, left, right, ones, LARGE_BIAS, PRECISION
        )
        patches = following
    grad += model * grad_model + part * 16 * CL * CS
    tl.store(
        grad + k[:, None] * CS + column[None, :],
        acc,
        mask=(k < 16 * CL)[:, None] & (column < CS)[None, :],
    )
    bias_grad += model * bias_model
    if LARGE_BIAS:
        if tl.program_id(0) == 0:
            # The four inner taps, rows and columns 1 and 2 of the kernel, meet every large pixel once between them.
            r, c = k // (4 * CL), k // CL % 4
            inner = (r >= 1) & (r <= 2) & (c >= 1) & (c <= 2)
            total = tl.sum(large_sum, axis=1) * (1 / 16)
            for channel in tl.static_range(CL):
                own = tl.where(inner & (k % CL == channel), total, 0.0)
                tl.store(bias_grad + part * CL + channel, tl.sum(own, axis=0))
    else:
        tl.store(
            bias_grad + part * CS + column, tl.sum(small_sum, axis=0) * (1 / 16), mask=column < CS
        )
