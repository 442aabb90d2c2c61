"""Batch norm over every pixel of each model's own batch, and its gradients."""

import triton
import triton.language as tl


@triton.jit
def moments_kernel(
    x, partial, positions, per_part, C: tl.constexpr, CP: tl.constexpr, ROWS: tl.constexpr
):
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
        value = tl.load(x + position[:, None] * C + channel[None, :], mask=known, other=0.0).to(
            tl.float32
        )
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
    return tl.sum(
        tl.load(partial + part[:, None] * stride + channel[None, :], mask=known, other=0.0), axis=0
    )


@triton.jit
def statistics_kernel(
    x,
    partial,
    statistics,
    running_mean,
    running_variance,
    positions,
    parts,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    EPSILON: tl.constexpr,
    MOMENTUM: tl.constexpr,
):
    """From the partial sums: the batch's mean and 1 / standard deviation, and a step of the running ones."""
    model = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    used = channel < C
    partial += model * parts * 2 * C
    offset = _sum_of_parts(partial, 2 * C, parts, channel, used, PARTS) / positions
    squares = _sum_of_parts(partial + C, 2 * C, parts, channel, used, PARTS) / positions
    variance = tl.maximum(squares - offset * offset, 0.0)
    mean = (
        tl.load(x + model * positions * C + channel, mask=used, other=0.0).to(tl.float32) + offset
    )
    tl.store(statistics + model * 2 * C + channel, mean, mask=used)
    tl.store(statistics + model * 2 * C + C + channel, 1.0 / tl.sqrt(variance + EPSILON), mask=used)
    kept_mean = tl.load(running_mean + model * C + channel, mask=used, other=0.0)
    kept_variance = tl.load(running_variance + model * C + channel, mask=used, other=0.0)
    unbiased = variance * positions / (positions - 1)
    tl.store(
        running_mean + model * C + channel, kept_mean + MOMENTUM * (mean - kept_mean), mask=used
    )
    tl.store(
        running_variance + model * C + channel,
        kept_variance + MOMENTUM * (unbiased - kept_variance),
        mask=used,
    )


@triton.jit
def totals_kernel(
    first,
    second,
    totals,
    parts,
    first_model,
    second_model,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
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
    x,
    statistics,
    weight,
    bias,
    out,
    positions,
    weight_model,
    bias_model,
    C: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
    RELU: tl.constexpr,
):
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
    value = (
        tl.load(x + offset, mask=known, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    )
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + offset, value.to(out.dtype.element_ty), mask=known)


@triton.jit
def normalise_sums_kernel(
    x,
    dy,
    statistics,
    weight_grad,
    bias_grad,
    positions,
    per_part,
    weight_model,
    bias_model,
    C: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
):
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
        value = (tl.load(x + offset, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * scale[
            None, :
        ]
        plain += tl.sum(gradient, axis=0)
        along += tl.sum(gradient * value, axis=0)
    tl.store(weight_grad + model * weight_model + part * C + channel, along, mask=used)
    tl.store(bias_grad + model * bias_model + part * C + channel, plain, mask=used)


@triton.jit
def normalise_input_kernel(
    x,
    dy,
    statistics,
    weight,
    sums,
    out,
    positions,
    weight_model,
    C: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
):
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
    value = (tl.load(x + offset, mask=known, other=0.0).to(tl.float32) - mean[None, :]) * scale[
        None, :
    ]
    dx = (w * scale)[None, :] * (gradient - plain[None, :] - value * along[None, :])
    tl.store(out + offset, dx.to(out.dtype.element_ty), mask=known)
