"""Adam for all layers and models in one launch."""

import triton
import triton.language as tl


@triton.jit
def adam_kernel(
    weight,
    first,
    second,
    operand,
    partials,
    table,
    counter,
    rate,
    parameters,
    partial_size,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDED: tl.constexpr,
):
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
        gradient += tl.sum(
            tl.load(source + part[:, None] * stride + within[None, :], mask=known, other=0.0),
            axis=0,
        )
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
