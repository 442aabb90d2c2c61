"""Launches of the 4x4, stride-2 convolution kernels."""

import torch
import triton
from torch import Tensor

from controlvae.lab.engines.stacked import tiling
from controlvae.lab.engines.stacked.kernels.conv import conv_kernel, conv_transpose_kernel
from controlvae.lab.engines.stacked.kernels.conv_weight_grad import (
    conv_weight_grad_kernel,
    conv_weight_grad_narrow_kernel,
)
from controlvae.lab.engines.stacked.tiling import PrecisionPolicy


def conv(
    large: Tensor,
    weight: Tensor,
    policy: PrecisionPolicy,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
) -> Tensor:
    """Compute small = Σ_tap large · W[tap], the convolution with stride 2 and padding 1.

    It is also the input gradient of a transposed convolution.

    Args:
        large: Input, (models, batch, 2H, 2W, CL).
        weight: (models, 4, 4, CL, CS).
        policy: Data types of maps and products.
        bias: Added to the output, (models, CS).
        relu: Rectify the output.
        gate: ReLU output, shaped like the result, whose sign gates it: a ReLU's gradient.

    Returns:
        (models, batch, H, W, CS).
    """
    models, batch, height, width, cl = large.shape
    cs = weight.shape[-1]
    out = torch.empty(
        models, batch, height // 2, width // 2, cs, dtype=policy.map_dtype, device=large.device
    )
    positions = batch * height * width // 4
    config = tiling.tile_config("conv", cl, cs, models, policy)
    grid = (triton.cdiv(positions, config["BLOCK_M"]), triton.cdiv(cs, config["BLOCK_N"]), models)
    conv_kernel[grid](
        large,
        weight,
        bias,
        gate,
        out,
        positions,
        weight.stride(0),
        _model_stride(bias),
        H=height // 2,
        W=width // 2,
        CL=cl,
        CS=cs,
        **config,
        BIAS=bias is not None,
        RELU=relu,
        GATE=gate is not None,
        DOT=policy.dot_dtype,
        PRECISION=policy.input_precision,
    )
    return out


def conv_transpose(
    small: Tensor,
    weight: Tensor,
    policy: PrecisionPolicy,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute large = Σ_tap small · W[tap]ᵀ, the transposed convolution.

    It is also the input gradient of a convolution.

    Args:
        small: Input, (models, batch, H, W, CS).
        weight: (models, 4, 4, CL, CS).
        policy: Data types of maps and products.
        bias: Added to the output, (models, CL).
        relu: Rectify the output.
        gate: ReLU output, shaped like the result, whose sign gates it: a ReLU's gradient.
        dtype: Data type of the result; that of feature maps by default.

    Returns:
        (models, batch, 2H, 2W, CL).
    """
    models, batch, height, width, cs = small.shape
    cl = weight.shape[-2]
    shape = (models, batch, 2 * height, 2 * width, cl)
    out = torch.empty(shape, dtype=dtype or policy.map_dtype, device=small.device)
    blocks = batch * (height + 1) * (width + 1)
    config = tiling.tile_config("conv_transpose", cl, cs, models, policy)
    columns = triton.cdiv(4 * cl, config["BLOCK_N"])
    programs = triton.cdiv(blocks, config["BLOCK_M"]) * columns * models
    # The benchmark of tiles passes its own TILES.
    config = {"TILES": tiling.tiles_per_program(programs, config, cs), **config}
    rows = triton.cdiv(blocks, config["BLOCK_M"] * config["TILES"])
    conv_transpose_kernel[(rows, columns, models)](
        small,
        weight,
        bias,
        gate,
        out,
        blocks,
        weight.stride(0),
        _model_stride(bias),
        H=height,
        W=width,
        CL=cl,
        CS=cs,
        **config,
        BIAS=bias is not None,
        RELU=relu,
        GATE=gate is not None,
        DOT=policy.dot_dtype,
        PRECISION=policy.input_precision,
    )
    return out


def conv_weight_grad(
    large: Tensor,
    small: Tensor,
    grad: Tensor,
    bias_grad: Tensor,
    policy: PrecisionPolicy,
    *,
    large_bias: bool,
) -> None:
    """Write dW[tap] = Σ_pixels largeᵀ · small and the bias gradient, as partial sums.

    Args:
        large: (models, batch, 2H, 2W, CL).
        small: (models, batch, H, W, CS).
        grad: Receives the weight gradient, (models, splits, 4, 4, CL, CS).
        bias_grad: Receives the bias gradient, (models, bias splits, channels), where a large map
            has `large_bias_splits` of them.
        policy: Data types of the products.
        large_bias: True if the bias belongs to the large map, as in a transposed convolution.
    """
    models, batch, height, width, cs = small.shape
    cl, splits = large.shape[-1], grad.shape[1]
    config = tiling.tile_config("conv_weight_grad", cl, cs, models, policy)
    tiles = triton.cdiv(4 * cl, config["BLOCK_M"]) * triton.cdiv(4 * cs, config["BLOCK_N"])
    kernel, summed = conv_weight_grad_kernel, batch * (height + 1) * (width + 1)
    if tiling.is_narrow(cl):
        tiles = triton.cdiv(cs, config["BLOCK_N"])
        kernel, summed = conv_weight_grad_narrow_kernel, batch * height * width
    kernel[(tiles, splits, models)](
        large,
        small,
        grad,
        bias_grad,
        summed,
        triton.cdiv(summed, splits),
        grad.stride(0),
        bias_grad.stride(0),
        H=height,
        W=width,
        CL=cl,
        CS=cs,
        **config,
        LARGE_BIAS=large_bias,
        DOT=policy.dot_dtype,
        PRECISION=policy.input_precision,
    )


def _model_stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)
