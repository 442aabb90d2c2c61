"""Compose one step's images from layers: see `controlvae.lab.data.composed_images`."""

import triton
import triton.language as tl

from controlvae.lab.engines.stacked.kernels.unpack import _image_index


@triton.jit
def compose_kernel(
    layers,
    channels,
    rows,
    indices,
    step,
    out,
    pixels,
    step_stride,
    model_stride,
    BATCH: tl.constexpr,
    LAYERS: tl.constexpr,
    FLOOR: tl.constexpr,
    WALL: tl.constexpr,
    OBJECT: tl.constexpr,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Add the layers of sky, floor, wall and object. The output is channels-last."""
    value = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    mask = value < 3 * pixels
    pixel, channel = value // 3, value % 3
    row = rows + _image_index(indices, step, step_stride, model_stride, BATCH) * 6
    floor = tl.load(row).to(tl.int32)
    wall = tl.load(row + 1).to(tl.int32)
    thing = tl.load(row + 2).to(tl.int32)
    scale = tl.load(row + 3).to(tl.int32)
    shape = tl.load(row + 4).to(tl.int32)
    geometry = (scale * 4 + shape) * 15 + tl.load(row + 5).to(tl.int32)
    first = layers + geometry * LAYERS * pixels + pixel
    floor_layer = FLOOR + tl.load(channels + floor * 3 + channel).to(tl.int32)
    wall_layer = WALL + tl.load(channels + wall * 3 + channel).to(tl.int32)
    thing_layer = OBJECT + tl.load(channels + thing * 3 + channel).to(tl.int32)
    total = tl.load(first + channel * pixels, mask=mask, other=0).to(tl.int32)
    total += tl.load(first + floor_layer * pixels, mask=mask, other=0).to(tl.int32)
    total += tl.load(first + wall_layer * pixels, mask=mask, other=0).to(tl.int32)
    total += tl.load(first + thing_layer * pixels, mask=mask, other=0).to(tl.int32)
    # Sums below zero are clamped first: Triton's division rounds them towards zero.
    level = tl.minimum(tl.maximum(total + PARTS // 2, 0) // PARTS, 255)
    if SCALE != 1:
        level = level.to(tl.float32) * SCALE
    at = tl.program_id(0).to(tl.int64) * 3 * pixels + value
    tl.store(out + at, level.to(out.dtype.element_ty), mask=mask)
