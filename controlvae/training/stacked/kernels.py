"""Triton kernels over a stack of models: one launch serves them all, and patches are never written to memory.

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


@triton.jit
def _split_position(position, H, W):
    """Pixel number -> (example, row, column)."""
    return position // (H * W), (position // W) % H, position % W


@triton.jit
def _finish(acc, out, gate, offset, gate_offset, mask, RELU: tl.constexpr, GATE: tl.constexpr, SLOPE: tl.constexpr):
    """The common end: rectify, or pass a gradient as the rectified activation lets it; then store."""
    if RELU:
        acc = tl.where(acc > 0, acc, SLOPE * acc)
    if GATE:
        acc = tl.where(tl.load(gate + gate_offset, mask=mask, other=0.0) > 0, acc, SLOPE * acc)
    tl.store(out + offset, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _patches(large, position, end, k, H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr):
    """What small pixels meet: the numbers k, (tap row, tap column, large channel), of the sixteen large pixels of each.

    Four pixels of a row lie side by side.
    """
    example, h, w = _split_position(position, H, W)
    y = 2 * h[:, None] + (k // (4 * CL))[None, :] - 1
    x = 2 * w[:, None] + (k // CL % 4)[None, :] - 1
    ok = (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W) & (position < end)[:, None] & (k < 16 * CL)[None, :]
    row = ((example * 2 * H)[:, None] + y) * 2 * W + (2 * w - 1)[:, None]
    return tl.load(large + row * CL + (k % (4 * CL))[None, :], mask=ok, other=0.0)


@triton.jit
def gather_kernel(
    large, weight, bias, gate, out, positions, weight_model, bias_model,
    H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr, CS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, GATE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
    _finish(acc, out, gate, offset, offset, (position < positions)[:, None] & (column < CS)[None, :], RELU, GATE, 0.0)


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
    small, weight, bias, gate, out, blocks, weight_model, bias_model,
    H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr, CS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, TURNS: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, GATE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        right = tl.load(weight + _weight_of(m[None, :], n[:, None], CL, CS), mask=known, other=0.0).to(DOT)
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
        _finish(acc, out, gate, place, place, ok, RELU, GATE, 0.0)


@triton.jit(do_not_specialize=["per_part"])
def outer_kernel(
    large, small, grad, bias_grad, blocks, per_part, grad_model, bias_model,
    H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr, CS: tl.constexpr,
    SLICE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    LARGE_BIAS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    slices: tl.constexpr = (4 * CL + SLICE - 1) // SLICE
    m = tl.program_id(0) % slices * SLICE + tl.arange(0, SLICE)
    n = tl.program_id(0) // slices * TILE + tl.arange(0, TILE)
    pixels = blocks // ((H + 1) * (W + 1)) * H * W
    large += model * pixels * 4 * CL
    small += model * pixels * CS
    acc = tl.zeros((SLICE, TILE), dtype=tl.float32)
    # A bias's gradient is a product with ones: the tensor cores sum faster than a reduction across warps.
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
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
        if LARGE_BIAS:
            large_sum = tl.dot(left, ones, large_sum, input_precision=PRECISION)
        else:
            small_sum = tl.dot(tl.trans(ones), right, small_sum, input_precision=PRECISION)
    known = (m < 4 * CL)[:, None] & (n < 4 * CS)[None, :]
    place = _weight_of(m[:, None], n[None, :], CL, CS)
    tl.store(grad + model * grad_model + part * 16 * CL * CS + place, acc, mask=known)
    bias_grad += model * bias_model
    if LARGE_BIAS:
        if tl.program_id(0) < slices:  # each large pixel is in one block: its bias comes in quarters
            total = tl.sum(large_sum, axis=1) * (1 / 16)  # sixteen times the same
            tl.store(bias_grad + part * 4 * CL + m, total, mask=m < 4 * CL)
    elif tl.program_id(0) % slices == 0:  # each small pixel is once the one with i = j = 0
        own = (n >= CS) & (n < 2 * CS)
        tl.store(bias_grad + part * CS + n - CS, tl.sum(small_sum, axis=0) * (1 / 16), mask=own)


@triton.jit(do_not_specialize=["per_part"])
def outer_few_kernel(
    large, small, grad, bias_grad, positions, per_part, grad_model, bias_model,
    H: tl.constexpr, W: tl.constexpr, CL: tl.constexpr, CS: tl.constexpr,
    SLICE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    LARGE_BIAS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        right = tl.load(small + position[:, None] * CS + column[None, :], mask=known, other=0.0).to(DOT)
        left = tl.trans(patches.to(DOT))
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
        if LARGE_BIAS:
            large_sum = tl.dot(left, ones, large_sum, input_precision=PRECISION)
        else:
            small_sum = tl.dot(tl.trans(ones), right, small_sum, input_precision=PRECISION)
        patches = following
    grad += model * grad_model + part * 16 * CL * CS
    tl.store(grad + k[:, None] * CS + column[None, :], acc, mask=(k < 16 * CL)[:, None] & (column < CS)[None, :])
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
        tl.store(bias_grad + part * CS + column, tl.sum(small_sum, axis=0) * (1 / 16), mask=column < CS)


@triton.jit
def matmul_kernel(
    left, right, bias, gate, out, column_sum, M, N, K,
    left_model, left_m, left_k, right_model, right_k, right_n, bias_model, bias_period, out_model, sum_model,
    gate_model,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, GATE: tl.constexpr, SUM: tl.constexpr, SLOPE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = (tl.program_id(2) // PARTS).to(tl.int64)
    part = tl.program_id(2) % PARTS  # of the sum over k, where it is long and few programs would do it
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    left += model * left_model
    right += model * right_model
    acc = tl.zeros((ROWS, TILE), dtype=tl.float32)
    total = tl.zeros((TILE,), dtype=tl.float32)
    per_part = (K + PARTS * DEPTH - 1) // (PARTS * DEPTH) * DEPTH
    for start in range(part * per_part, min((part + 1) * per_part, K), DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = tl.load(
            left + m[:, None] * left_m + k[None, :] * left_k, mask=(m < M)[:, None] & (k < K)[None, :], other=0.0
        )
        b = tl.load(
            right + k[:, None] * right_k + n[None, :] * right_n, mask=(k < K)[:, None] & (n < N)[None, :], other=0.0
        )
        acc = tl.dot(a.to(DOT), b.to(DOT), acc, input_precision=PRECISION)
        if SUM:
            total += tl.sum(b.to(tl.float32), axis=0)
    if BIAS:
        acc += tl.load(bias + model * bias_model + n % bias_period, mask=n < N, other=0.0)[None, :]
    if SUM:
        if tl.program_id(0) == 0:
            tl.store(column_sum + model * sum_model + n, total, mask=n < N)
    offset = m[:, None] * N + n[None, :]
    known = (m < M)[:, None] & (n < N)[None, :]
    out += model * out_model + part * M * N
    _finish(acc, out, gate, offset, offset + model * gate_model, known, RELU, GATE, SLOPE)


@triton.jit
def adam_kernel(
    weight, first, second, operand, partials, table, counter, rate, parameters, partial_size,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr,
    EPSILON: tl.constexpr, BLOCK: tl.constexpr, ROUNDED: tl.constexpr,
):  # fmt: skip
    """Sums a block's partial gradients and applies Adam to it: the optimiser of all layers and models in one launch.

    Where products are of rounded numbers, `operand` receives the weights as they take them.
    """
    model = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    within = tl.arange(0, BLOCK)
    begin = tl.load(table + block * 4)  # of the block's partial gradients
    parts = tl.load(table + block * 4 + 1)
    stride = tl.load(table + block * 4 + 2)
    count = tl.load(table + block * 4 + 3)  # parameters in use; the rest is padding
    used = within < count
    gradient = tl.zeros((BLOCK,), dtype=tl.float32)
    source = partials + model * partial_size + begin
    for start in range(0, parts, 16):  # sixteen parts at a time: their loads overlap
        part = start + tl.arange(0, 16)
        known = (part < parts)[:, None] & used[None, :]
        gradient += tl.sum(tl.load(source + part[:, None] * stride + within[None, :], mask=known, other=0.0), axis=0)
    offset = model * parameters + block * BLOCK + within
    m = tl.load(first + offset, mask=used, other=0.0)
    v = tl.load(second + offset, mask=used, other=0.0)
    m = BETA1 * m + (1 - BETA1) * gradient
    v = BETA2 * v + (1 - BETA2) * gradient * gradient
    # In float64: 1 - 0.999^t loses half its digits in float32 during the first steps.
    time = (tl.load(counter) + 1).to(tl.float64)
    correction1 = (1 - tl.exp(time * LOG_BETA1)).to(tl.float32)
    correction2 = (1 - tl.exp(time * LOG_BETA2)).to(tl.float32)
    w = tl.load(weight + offset, mask=used, other=0.0)
    w -= tl.load(rate) / correction1 * m / (tl.sqrt(v) / tl.sqrt(correction2) + EPSILON)
    tl.store(first + offset, m, mask=used)
    tl.store(second + offset, v, mask=used)
    tl.store(weight + offset, w, mask=used)
    if ROUNDED:
        tl.store(operand + offset, w.to(operand.dtype.element_ty), mask=used)


@triton.jit
def _picture_number(indices, step, step_stride, model_stride, BATCH: tl.constexpr):
    """Of this program's example, a step's indices being (models, batch); `step` is a number on the device."""
    example = tl.program_id(0)
    within = tl.load(step).to(tl.int64) * step_stride + example // BATCH * model_stride + example % BATCH
    return tl.load(indices + within).to(tl.int64)


@triton.jit
def unpack_kernel(
    bits, indices, step, out, row_bytes, step_stride, model_stride,
    BATCH: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A row is channel by channel, the picture pixel by pixel."""
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    inside = value < row_bytes * 8
    source = _picture_number(indices, step, step_stride, model_stride, BATCH) * row_bytes
    byte = tl.load(bits + source + value // 8, mask=inside, other=0)
    plane = row_bytes * 8 // CHANNELS
    place = value % plane * CHANNELS + value // plane
    bit = (byte >> (7 - value % 8).to(tl.uint8)) & 1
    first = tl.program_id(0).to(tl.int64) * row_bytes * 8
    tl.store(out + first + place, bit.to(out.dtype.element_ty), mask=inside)


@triton.jit
def unpack_bytes_kernel(
    rows, indices, step, out, row_bytes, step_stride, model_stride,
    BATCH: tl.constexpr, SCALE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    inside = value < row_bytes
    source = _picture_number(indices, step, step_stride, model_stride, BATCH) * row_bytes
    byte = tl.load(rows + source + value, mask=inside, other=0)
    if SCALE != 1:
        byte = byte.to(tl.float32) * SCALE
    first = tl.program_id(0).to(tl.int64) * row_bytes
    tl.store(out + first + value, byte.to(out.dtype.element_ty), mask=inside)


@triton.jit
def moments_kernel(x, partial, positions, per_part, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr):
    """Sums of (x - shift) and its square in parts; the shift, a pixel's own value, keeps the difference exact."""
    part = tl.program_id(0)
    model = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, CP)
    x += model * positions * C
    shift = tl.load(x + channel, mask=channel < C, other=0.0).to(tl.float32)
    total = tl.zeros((CP,), dtype=tl.float32)
    squares = tl.zeros((CP,), dtype=tl.float32)
    end = min((part + 1) * per_part, positions)
    for start in range(part * per_part, end, ROWS):
        position = start + tl.arange(0, ROWS)
        known = (position < end)[:, None] & (channel < C)[None, :]
        value = tl.load(x + position[:, None] * C + channel[None, :], mask=known, other=0.0).to(tl.float32)
        value = tl.where(known, value - shift[None, :], 0.0)
        total += tl.sum(value, axis=0)
        squares += tl.sum(value * value, axis=0)
    partial += (model * tl.num_programs(0) + part) * 2 * C
    tl.store(partial + channel, total, mask=channel < C)
    tl.store(partial + C + channel, squares, mask=channel < C)


@triton.jit
def _sum_of_parts(partial, stride, parts, channel, used, PARTS: tl.constexpr):
    """Σ over parts of a channel's partial sums, all loaded at once."""
    part = tl.arange(0, PARTS)
    known = (part < parts)[:, None] & used[None, :]
    return tl.sum(tl.load(partial + part[:, None] * stride + channel[None, :], mask=known, other=0.0), axis=0)


@triton.jit
def statistics_kernel(
    x, partial, statistics, running_mean, running_variance, positions, parts,
    C: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, EPSILON: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """From the partial sums: the batch's mean and 1 / standard deviation, and a step of the running ones."""
    model = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    used = channel < C
    partial += model * parts * 2 * C
    offset = _sum_of_parts(partial, 2 * C, parts, channel, used, PARTS) / positions
    squares = _sum_of_parts(partial + C, 2 * C, parts, channel, used, PARTS) / positions
    variance = tl.maximum(squares - offset * offset, 0.0)
    mean = tl.load(x + model * positions * C + channel, mask=used, other=0.0).to(tl.float32) + offset
    tl.store(statistics + model * 2 * C + channel, mean, mask=used)
    tl.store(statistics + model * 2 * C + C + channel, 1.0 / tl.sqrt(variance + EPSILON), mask=used)
    kept_mean = tl.load(running_mean + model * C + channel, mask=used, other=0.0)
    kept_variance = tl.load(running_variance + model * C + channel, mask=used, other=0.0)
    unbiased = variance * positions / (positions - 1)
    tl.store(running_mean + model * C + channel, kept_mean + MOMENTUM * (mean - kept_mean), mask=used)
    tl.store(running_variance + model * C + channel, kept_variance + MOMENTUM * (unbiased - kept_variance), mask=used)


@triton.jit
def totals_kernel(
    first, second, totals, parts, first_model, second_model, C: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr
):
    """Both gradients of a batch norm, summed over their parts: (models, 2, C)."""
    model = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    used = channel < C
    along = _sum_of_parts(first + model * first_model, C, parts, channel, used, PARTS)
    plain = _sum_of_parts(second + model * second_model, C, parts, channel, used, PARTS)
    tl.store(totals + model * 2 * C + channel, along, mask=used)
    tl.store(totals + model * 2 * C + C + channel, plain, mask=used)


@triton.jit
def normalise_kernel(
    x, statistics, weight, bias, out, positions, weight_model, bias_model,
    C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, CP)
    used = channel < C
    mean = tl.load(statistics + model * 2 * C + channel, mask=used, other=0.0)
    scale = tl.load(statistics + model * 2 * C + C + channel, mask=used, other=0.0)
    scale *= tl.load(weight + model * weight_model + channel, mask=used, other=0.0)
    shift = tl.load(bias + model * bias_model + channel, mask=used, other=0.0) - mean * scale
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (position < positions)[:, None] & used[None, :]
    offset = model * positions * C + position[:, None] * C + channel[None, :]
    value = tl.load(x + offset, mask=known, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=known)


@triton.jit
def normalise_sums_kernel(
    x, dy, statistics, weight_grad, bias_grad, positions, per_part, weight_model, bias_model,
    C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias in parts: Σ dy · x̂ and Σ dy."""
    part = tl.program_id(0)
    model = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, CP)
    used = channel < C
    mean = tl.load(statistics + model * 2 * C + channel, mask=used, other=0.0)
    scale = tl.load(statistics + model * 2 * C + C + channel, mask=used, other=0.0)
    x += model * positions * C
    dy += model * positions * C
    plain = tl.zeros((CP,), dtype=tl.float32)
    along = tl.zeros((CP,), dtype=tl.float32)
    end = min((part + 1) * per_part, positions)
    for start in range(part * per_part, end, ROWS):
        position = start + tl.arange(0, ROWS)
        known = (position < end)[:, None] & used[None, :]
        offset = position[:, None] * C + channel[None, :]
        gradient = tl.load(dy + offset, mask=known, other=0.0).to(tl.float32)
        value = (tl.load(x + offset, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        plain += tl.sum(gradient, axis=0)
        along += tl.sum(gradient * value, axis=0)
    tl.store(weight_grad + model * weight_model + part * C + channel, along, mask=used)
    tl.store(bias_grad + model * bias_model + part * C + channel, plain, mask=used)


@triton.jit
def normalise_input_kernel(
    x, dy, statistics, weight, sums, out, positions, weight_model,
    C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx = w / sd · (dy - mean(dy) - x̂ · mean(dy · x̂)). sums: (models, 2, C), along first."""
    model = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, CP)
    used = channel < C
    mean = tl.load(statistics + model * 2 * C + channel, mask=used, other=0.0)
    scale = tl.load(statistics + model * 2 * C + C + channel, mask=used, other=0.0)
    along = tl.load(sums + model * 2 * C + channel, mask=used, other=0.0) / positions
    plain = tl.load(sums + model * 2 * C + C + channel, mask=used, other=0.0) / positions
    w = tl.load(weight + model * weight_model + channel, mask=used, other=0.0)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (position < positions)[:, None] & used[None, :]
    offset = model * positions * C + position[:, None] * C + channel[None, :]
    gradient = tl.load(dy + offset, mask=known, other=0.0).to(tl.float32)
    value = (tl.load(x + offset, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    dx = (w * scale)[None, :] * (gradient - plain[None, :] - value * along[None, :])
    tl.store(out + offset, dx.to(out.dtype.element_ty), mask=known)
