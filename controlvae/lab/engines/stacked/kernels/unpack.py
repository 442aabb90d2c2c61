"""A step's pictures from their packed rows."""

import triton
import triton.language as tl


@triton.jit
def _picture_number(indices, step, step_stride, model_stride, BATCH: tl.constexpr):
    """Of this program's example, a step's indices being (models, batch); `step` is a number on the device."""
    example = tl.program_id(0)
    within = (
        tl.load(step).to(tl.int64) * step_stride + example // BATCH * model_stride + example % BATCH
    )
    return tl.load(indices + within).to(tl.int64)


@triton.jit
def unpack_kernel(
    bits,
    indices,
    step,
    out,
    row_bytes,
    step_stride,
    model_stride,
    BATCH: tl.constexpr,
    CHANNELS: tl.constexpr,
    VALUES: tl.constexpr,
):
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
    rows,
    indices,
    step,
    out,
    row_bytes,
    step_stride,
    model_stride,
    BATCH: tl.constexpr,
    SCALE: tl.constexpr,
    VALUES: tl.constexpr,
):
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    inside = value < row_bytes
    source = _picture_number(indices, step, step_stride, model_stride, BATCH) * row_bytes
    byte = tl.load(rows + source + value, mask=inside, other=0)
    if SCALE != 1:
        byte = byte.to(tl.float32) * SCALE
    first = tl.program_id(0).to(tl.int64) * row_bytes
    tl.store(out + first + value, byte.to(out.dtype.element_ty), mask=inside)
