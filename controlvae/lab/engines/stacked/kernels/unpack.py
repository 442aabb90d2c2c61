"""Decode one step's images from their packed rows."""

import triton
import triton.language as tl


@triton.jit
def _image_index(indices, step, step_stride, model_stride, BATCH: tl.constexpr):
    """Return the data-set index of this program's example.

    `indices` is (steps, models, batch). `step` points to a number on the device, so a captured
    graph reads the current step.
    """
    example = tl.program_id(0)
    offset = (
        tl.load(step).to(tl.int64) * step_stride + example // BATCH * model_stride + example % BATCH
    )
    return tl.load(indices + offset).to(tl.int64)


@triton.jit
def unpack_bits_kernel(
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
    """Unpack bits, most significant first. Rows are channels-first, the output channels-last."""
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    mask = value < row_bytes * 8
    source = _image_index(indices, step, step_stride, model_stride, BATCH) * row_bytes
    byte = tl.load(bits + source + value // 8, mask=mask, other=0)
    plane = row_bytes * 8 // CHANNELS
    channels_last = value % plane * CHANNELS + value // plane
    bit = (byte >> (7 - value % 8).to(tl.uint8)) & 1
    first = tl.program_id(0).to(tl.int64) * row_bytes * 8
    tl.store(out + first + channels_last, bit.to(out.dtype.element_ty), mask=mask)


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
    """Copy bytes, multiplied by `SCALE` unless it is 1. Rows are channels-last already."""
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    mask = value < row_bytes
    source = _image_index(indices, step, step_stride, model_stride, BATCH) * row_bytes
    byte = tl.load(rows + source + value, mask=mask, other=0)
    if SCALE != 1:
        byte = byte.to(tl.float32) * SCALE
    first = tl.program_id(0).to(tl.int64) * row_bytes
    tl.store(out + first + value, byte.to(out.dtype.element_ty), mask=mask)
