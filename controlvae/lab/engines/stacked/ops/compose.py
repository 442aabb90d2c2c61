"""Launch of the kernel that composes a step's images from layers."""

import torch
import triton
from torch import Tensor

from controlvae.lab.data.composed_images import LayerTable
from controlvae.lab.engines.stacked.kernels.compose import compose_kernel
from controlvae.lab.engines.stacked.ops.unpack import empty_batch


def compose_images(
    table: LayerTable,
    rows: Tensor,
    indices: Tensor,
    step: Tensor,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
) -> Tensor:
    """Compose colour images from their factors.

    Args:
        table: Layers of all geometries, on the device.
        rows: Factors of all images, (images, 6).
        indices: Images of each step of a block, (steps, models, batch).
        step: Step within the block, (1,) on the device: a captured graph reads the current one.
        shape: (channels, height, width) of an image.
        dtype: Data type of the result.

    Returns:
        (models, batch, height, width, channels): bytes if `dtype` is uint8, otherwise in [0, 1].
    """
    out = empty_batch(indices, shape, dtype)
    _, floor, wall, thing = table.FIRST_LAYERS
    pixels = shape[1] * shape[2]
    grid = (out[..., 0, 0, 0].numel(), triton.cdiv(3 * pixels, 1024))
    compose_kernel[grid](
        table.layers,
        table.channels,
        rows,
        indices,
        step,
        out,
        pixels,
        *indices.stride()[:2],
        BATCH=indices.shape[2],
        LAYERS=table.layers.shape[1],
        FLOOR=floor,
        WALL=wall,
        OBJECT=thing,
        PARTS=table.parts,
        SCALE=1 if dtype == torch.uint8 else 1 / 255,
        VALUES=1024,
    )
    return out
