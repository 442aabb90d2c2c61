"""Launches of the kernels that decode a step's images."""

import torch
import triton
from torch import Tensor

from controlvae.lab.engines.stacked.kernels.unpack import unpack_bits_kernel, unpack_bytes_kernel


def unpack_bits(
    rows: Tensor, indices: Tensor, step: Tensor, shape: tuple[int, int, int], dtype: torch.dtype
) -> Tensor:
    """Decode binary images from rows of packed bits.

    Args:
        rows: All images, (images, bytes), most significant bit first.
        indices: Images of each step of a block, (steps, models, batch).
        step: Step within the block, (1,) on the device: a captured graph reads the current one.
        shape: (channels, height, width) of an image.
        dtype: Data type of the result.

    Returns:
        (models, batch, height, width, channels) with values 0 and 1.
    """
    out = empty_batch(indices, shape, dtype)
    grid = (out[..., 0, 0, 0].numel(), triton.cdiv(rows.shape[1] * 8, 1024))
    unpack_bits_kernel[grid](
        rows,
        indices,
        step,
        out,
        rows.shape[1],
        *indices.stride()[:2],
        BATCH=indices.shape[2],
        CHANNELS=shape[0],
        VALUES=1024,
    )
    return out


def unpack_bytes(
    rows: Tensor, indices: Tensor, step: Tensor, shape: tuple[int, int, int], dtype: torch.dtype
) -> Tensor:
    """Decode images from rows of bytes.

    Args:
        rows: All images, (images, bytes), channels last.
        indices: Images of each step of a block, (steps, models, batch).
        step: Step within the block, (1,) on the device: a captured graph reads the current one.
        shape: (channels, height, width) of an image.
        dtype: Data type of the result.

    Returns:
        (models, batch, height, width, channels): bytes if `dtype` is uint8, otherwise in [0, 1].
    """
    out = empty_batch(indices, shape, dtype)
    grid = (out[..., 0, 0, 0].numel(), triton.cdiv(rows.shape[1], 4096))
    unpack_bytes_kernel[grid](
        rows,
        indices,
        step,
        out,
        rows.shape[1],
        *indices.stride()[:2],
        BATCH=indices.shape[2],
        SCALE=1 if dtype == torch.uint8 else 1 / 255,
        VALUES=4096,
    )
    return out


def empty_batch(indices: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Allocate the images of one step. The kernels read the indices of a batch as contiguous."""
    assert indices.stride(2) == 1
    channels, height, width = shape
    return torch.empty(
        *indices.shape[1:], height, width, channels, dtype=dtype, device=indices.device
    )
