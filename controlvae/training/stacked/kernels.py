"""Triton kernels over a stack of models: one launch serves them all, and patches are never written to memory.

A stride-2 layer with 4x4 kernels links a *large* map (2H, 2W) and a *small* map (H, W): small pixel (h, w) and tap
(r, c) meet large pixel (2h + r - 1, 2w + c - 1). Three products over that relation are all that convolution,
transposed convolution and their gradients need:

    gather   small = Σ_tap large · W[tap]          convolution forward; transposed convolution's input gradient
    spread   large = Σ_tap small · W[tap]ᵀ         transposed convolution forward; convolution's input gradient
    outer    W[tap] = Σ_pixels largeᵀ · small      the weight gradient of both

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
def gather_kernel(
    large, weight, bias, gate, out, positions, weight_model, bias_model, H, W,
    CL: tl.constexpr, CS: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, GATE: tl.constexpr, PATCH: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = position < positions
    example, h, w = _split_position(position, H, W)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    large += model * positions * 4 * CL
    weight += model * weight_model
    acc = tl.zeros((ROWS, TILE), dtype=tl.float32)
    if PATCH:
        # Few channels: all taps of all channels side by side are one product.
        k = tl.arange(0, DEPTH)
        y = 2 * h[:, None] + (k // CL // 4)[None, :] - 1
        x = 2 * w[:, None] + (k // CL % 4)[None, :] - 1
        ok = (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W) & inside[:, None] & (k < 16 * CL)[None, :]
        pixel = (example[:, None] * 2 * H + y) * 2 * W + x
        left = tl.load(large + pixel * CL + (k % CL)[None, :], mask=ok, other=0.0).to(DOT)
        taps = (k < 16 * CL)[:, None] & (column < CS)[None, :]
        right = tl.load(weight + k[:, None] * CS + column[None, :], mask=taps, other=0.0).to(DOT)
        acc = tl.dot(left, right, acc, input_precision=PRECISION)
    else:
        slices: tl.constexpr = (CL + DEPTH - 1) // DEPTH
        for turn in range(16 * slices):
            tap = turn // slices
            channel = turn % slices * DEPTH + tl.arange(0, DEPTH)
            known = (channel < CL)[:, None] & (column < CS)[None, :]
            y = 2 * h + tap // 4 - 1
            x = 2 * w + tap % 4 - 1
            ok = (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W) & inside
            pixel = (example * 2 * H + y) * 2 * W + x
            ok2 = ok[:, None] & (channel < CL)[None, :]
            left = tl.load(large + pixel[:, None] * CL + channel[None, :], mask=ok2, other=0.0).to(DOT)
            right = tl.load(weight + (tap * CL + channel[:, None]) * CS + column[None, :], mask=known, other=0.0)
            acc = tl.dot(left, right.to(DOT), acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + model * bias_model + column, mask=column < CS, other=0.0)[None, :]
    offset = model * positions * CS + position[:, None] * CS + column[None, :]
    _finish(acc, out, gate, offset, offset, inside[:, None] & (column < CS)[None, :], RELU, GATE, 0.0)


@triton.jit
def spread_kernel(
    small, weight, bias, gate, out, positions, weight_model, bias_model, H, W,
    CL: tl.constexpr, CS: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, GATE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    # Large pixels of one parity (a, b) meet the same four taps, so a program takes pixels of one parity.
    a = tl.program_id(1) % 4 // 2
    b = tl.program_id(1) % 2
    column = tl.program_id(1) // 4 * TILE + tl.arange(0, TILE)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = position < positions
    example, h, w = _split_position(position, H, W)
    small += model * positions * CS
    weight += model * weight_model
    acc = tl.zeros((ROWS, TILE), dtype=tl.float32)
    slices: tl.constexpr = (CS + DEPTH - 1) // DEPTH
    for turn in range(4 * slices):
        channel = turn % slices * DEPTH + tl.arange(0, DEPTH)
        known = (channel < CS)[:, None] & (column < CL)[None, :]
        i = turn // slices // 2
        j = turn // slices % 2
        # Parity 0 meets tap 1 of its own small row and tap 3 of the row before; parity 1, tap 2 and tap 0 of the next.
        tap = (1 + a + (2 - 4 * a) * i) * 4 + 1 + b + (2 - 4 * b) * j
        y = h + (2 * a - 1) * i
        x = w + (2 * b - 1) * j
        ok = (y >= 0) & (y < H) & (x >= 0) & (x < W) & inside
        pixel = (example * H + y) * W + x
        ok2 = ok[:, None] & (channel < CS)[None, :]
        left = tl.load(small + pixel[:, None] * CS + channel[None, :], mask=ok2, other=0.0).to(DOT)
        right = tl.load(weight + (tap * CL + column[None, :]) * CS + channel[:, None], mask=known, other=0.0)
        acc = tl.dot(left, right.to(DOT), acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + model * bias_model + column, mask=column < CL, other=0.0)[None, :]
    pixel = (example * 2 * H + 2 * h + a) * 2 * W + 2 * w + b
    offset = model * positions * 4 * CL + pixel[:, None] * CL + column[None, :]
    _finish(acc, out, gate, offset, offset, inside[:, None] & (column < CL)[None, :], RELU, GATE, 0.0)


@triton.jit
def spread_few_kernel(
    small, weight, bias, gate, out, positions, weight_model, bias_model, H, W,
    CL: tl.constexpr, CS: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, GATE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`spread_kernel` for up to four large channels: all four parities together are the columns of one product."""
    model = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = position < positions
    example, h, w = _split_position(position, H, W)
    column = tl.arange(0, TILE)  # (parity, large channel)
    a = column // CL // 2
    b = column // CL % 2
    small += model * positions * CS
    weight += model * weight_model
    acc = tl.zeros((ROWS, TILE), dtype=tl.float32)
    slices = (CS + DEPTH - 1) // DEPTH
    for turn in range(9 * slices):  # over the pixels near by, and the slices of their channels
        channel = turn % slices * DEPTH + tl.arange(0, DEPTH)
        i = turn // slices // 3
        j = turn // slices % 3
        # Small row h - 1 + i meets large row 2h + a at kernel row a + 3 - 2i, where there is one.
        r = a + 3 - 2 * i
        c = b + 3 - 2 * j
        y = h - 1 + i
        x = w - 1 + j
        ok = (y >= 0) & (y < H) & (x >= 0) & (x < W) & inside
        pixel = (example * H + y) * W + x
        ok2 = ok[:, None] & (channel < CS)[None, :]
        left = tl.load(small + pixel[:, None] * CS + channel[None, :], mask=ok2, other=0.0).to(DOT)
        met = (r >= 0) & (r < 4) & (c >= 0) & (c < 4) & (column < 4 * CL)
        source = ((r * 4 + c) * CL + column % CL)[None, :] * CS + channel[:, None]
        right = tl.load(weight + source, mask=met[None, :] & (channel < CS)[:, None], other=0.0)
        acc = tl.dot(left, right.to(DOT), acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + model * bias_model + column % CL, mask=column < 4 * CL, other=0.0)[None, :]
    pixel = ((example * 2 * H + 2 * h)[:, None] + a[None, :]) * 2 * W + 2 * w[:, None] + b[None, :]
    offset = model * positions * 4 * CL + pixel * CL + (column % CL)[None, :]
    _finish(acc, out, gate, offset, offset, inside[:, None] & (column < 4 * CL)[None, :], RELU, GATE, 0.0)


@triton.jit
def outer_kernel(
    large, small, grad, bias_grad, positions, per_part, grad_model, bias_model, H, W,
    CL: tl.constexpr, CS: tl.constexpr, SLICE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    LARGE_BIAS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    slices = (16 * CL + SLICE - 1) // SLICE
    k = tl.program_id(0) % slices * SLICE + tl.arange(0, SLICE)  # (tap, large channel)
    column = tl.program_id(0) // slices * TILE + tl.arange(0, TILE)
    tap = k // CL
    channel = k % CL
    large += model * positions * 4 * CL
    small += model * positions * CS
    acc = tl.zeros((SLICE, TILE), dtype=tl.float32)
    # A bias's gradient is a product with ones: the tensor cores sum faster than a reduction across warps.
    ones = tl.full((ROWS, 16), 1.0, dtype=DOT)
    large_sum = tl.zeros((SLICE, 16), dtype=tl.float32)
    small_sum = tl.zeros((16, TILE), dtype=tl.float32)
    end = min((part + 1) * per_part, positions)
    for start in range(part * per_part, end, ROWS):
        position = start + tl.arange(0, ROWS)
        inside = position < end
        example, h, w = _split_position(position, H, W)
        y = 2 * h[:, None] + (tap // 4)[None, :] - 1
        x = 2 * w[:, None] + (tap % 4)[None, :] - 1
        ok = (y >= 0) & (y < 2 * H) & (x >= 0) & (x < 2 * W) & inside[:, None] & (tap < 16)[None, :]
        pixel = (example[:, None] * 2 * H + y) * 2 * W + x
        left = tl.load(large + pixel * CL + channel[None, :], mask=ok, other=0.0)
        known = inside[:, None] & (column < CS)[None, :]
        right = tl.load(small + position[:, None] * CS + column[None, :], mask=known, other=0.0)
        left = tl.trans(left.to(DOT))
        acc = tl.dot(left, right.to(DOT), acc, input_precision=PRECISION)
        if LARGE_BIAS:
            large_sum = tl.dot(left, ones, large_sum, input_precision=PRECISION)
        else:
            small_sum = tl.dot(tl.trans(ones), right.to(DOT), small_sum, input_precision=PRECISION)
    grad += model * grad_model + part * 16 * CL * CS
    tl.store(grad + k[:, None] * CS + column[None, :], acc, mask=(tap < 16)[:, None] & (column < CS)[None, :])
    bias_grad += model * bias_model
    if LARGE_BIAS:
        # The four inner taps, rows and columns 1 and 2 of the kernel, meet every large pixel once between them.
        inner = (tap // 4 >= 1) & (tap // 4 <= 2) & (tap % 4 >= 1) & (tap % 4 <= 2) & (tap < 16)
        quarter = (tap // 4 - 1) * 2 + tap % 4 - 1
        if tl.program_id(0) < slices:
            total = tl.sum(large_sum, axis=1) * (1 / 16)  # sixteen times the same
            tl.store(bias_grad + (part * 4 + quarter) * CL + channel, total, mask=inner)
    elif tl.program_id(0) % slices == 0:
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
    weight, first, second, partials, table, counter, rate, parameters, partial_size,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr,
    EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums a block's partial gradients and applies Adam to it: the optimiser of all layers and models in one launch."""
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


@triton.jit
def unpack_kernel(bits, indices, out, row_bytes, CHANNELS: tl.constexpr, VALUES: tl.constexpr):
    """A row is channel by channel, the picture pixel by pixel."""
    example = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    inside = value < row_bytes * 8
    source = tl.load(indices + example).to(tl.int64) * row_bytes
    byte = tl.load(bits + source + value // 8, mask=inside, other=0)
    plane = row_bytes * 8 // CHANNELS
    place = value % plane * CHANNELS + value // plane
    bit = (byte >> (7 - value % 8).to(tl.uint8)) & 1
    tl.store(out + example * row_bytes * 8 + place, bit.to(out.dtype.element_ty), mask=inside)


@triton.jit
def unpack_bytes_kernel(rows, indices, out, row_bytes, SCALE: tl.constexpr, VALUES: tl.constexpr):
    example = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    inside = value < row_bytes
    source = tl.load(indices + example).to(tl.int64) * row_bytes
    byte = tl.load(rows + source + value, mask=inside, other=0)
    if SCALE != 1:
        byte = byte.to(tl.float32) * SCALE
    tl.store(out + example * row_bytes + value, byte.to(out.dtype.element_ty), mask=inside)


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
