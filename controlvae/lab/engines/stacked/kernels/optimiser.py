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
    partials_size,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    """Sum the partial gradients of one block of parameters and apply Adam to it.

    Summing here saves a separate pass over the gradients. `table` is (blocks, 4): offset of the
    first partial gradient, number of partial gradients, stride between them, parameters in use.
    If `ROUNDED`, `operand` receives the weights in the data type of the matmuls.
    """
    model = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    begin = tl.load(table + block * 4)
    splits = tl.load(table + block * 4 + 1)
    stride = tl.load(table + block * 4 + 2)
    count = tl.load(table + block * 4 + 3)  # the rest of the block is padding
    used = index < count
    gradient = tl.zeros((BLOCK,), dtype=tl.float32)
    source = partials + model * partials_size + begin
    for start in range(0, splits, 16):  # sixteen partial gradients at a time: their loads overlap
        split = start + tl.arange(0, 16)
        mask = (split < splits)[:, None] & used[None, :]
        gradient += tl.sum(
            tl.load(source + split[:, None] * stride + index[None, :], mask=mask, other=0.0),
            axis=0,
        )
    offset = model * parameters + block * BLOCK + index
    m = tl.load(first + offset, mask=used, other=0.0)
    v = tl.load(second + offset, mask=used, other=0.0)
    m = BETA1 * m + (1 - BETA1) * gradient
    v = BETA2 * v + (1 - BETA2) * gradient * gradient
    # float64: 1 - 0.999^t loses half its digits in float32 during the first steps.
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
