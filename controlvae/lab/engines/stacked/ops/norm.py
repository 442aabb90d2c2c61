"""Launches of the batch-norm kernels."""

import torch
import triton
from torch import Tensor

from controlvae.lab.engines.stacked.kernels import norm as kernels
from controlvae.lab.engines.stacked.tiling import pad_channels

# Channels whose partial sums one program adds.
_CHANNELS_PER_PROGRAM = 16


def batch_statistics(
    x: Tensor,
    splits: int,
    running_mean: Tensor,
    running_variance: Tensor,
    epsilon: float,
    momentum: float,
) -> Tensor:
    """Compute the mean and 1 / standard deviation of each channel over all pixels of a batch.

    Args:
        x: Feature map, (models, batch, height, width, channels).
        splits: Splits of the sums over pixels.
        running_mean: Updated in place, (models, channels).
        running_variance: Updated in place, (models, channels).
        epsilon: Added to the variance.
        momentum: Weight of this batch in the running statistics.

    Returns:
        (models, 2, channels): means, then 1 / standard deviations.
    """
    models, channels, positions = x.shape[0], x.shape[-1], x[0].numel() // x.shape[-1]
    partial = torch.empty(models, splits, 2, channels, device=x.device)
    statistics = torch.empty(models, 2, channels, device=x.device)
    kernels.moments_kernel[(splits, models)](
        x, partial, positions, triton.cdiv(positions, splits), **_tile_sizes(channels)
    )
    kernels.statistics_kernel[(models, triton.cdiv(channels, _CHANNELS_PER_PROGRAM))](
        x,
        partial,
        statistics,
        running_mean,
        running_variance,
        positions,
        splits,
        C=channels,
        TILE=_CHANNELS_PER_PROGRAM,
        SPLITS_PADDED=triton.next_power_of_2(splits),
        EPSILON=epsilon,
        MOMENTUM=momentum,
    )
    return statistics


def normalise(x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """Return (x - mean) / sd · weight + bias, rectified if `relu`.

    Args:
        x: Feature map, (models, batch, height, width, channels).
        statistics: From `batch_statistics`, (models, 2, channels).
        weight: (models, channels).
        bias: (models, channels).
        relu: Rectify the output.
    """
    positions, sizes = x[0].numel() // x.shape[-1], _tile_sizes(x.shape[-1])
    out = torch.empty_like(x)
    kernels.normalise_kernel[(triton.cdiv(positions, sizes["ROWS"]), len(x))](
        x,
        statistics,
        weight,
        bias,
        out,
        positions,
        weight.stride(0),
        bias.stride(0),
        RELU=relu,
        **sizes,
    )
    return out


def normalise_backward(
    x: Tensor,
    dy: Tensor,
    statistics: Tensor,
    weight: Tensor,
    weight_grad: Tensor,
    bias_grad: Tensor,
) -> Tensor:
    """Return the input gradient of a batch norm and write those of its weight and bias.

    Args:
        x: Input of the layer, (models, batch, height, width, channels).
        dy: Gradient of the output, shaped like `x`.
        statistics: From `batch_statistics`, (models, 2, channels).
        weight: (models, channels).
        weight_grad: Receives partial sums, (models, splits, channels).
        bias_grad: Receives partial sums, (models, splits, channels).
    """
    models, channels, splits = len(x), x.shape[-1], weight_grad.shape[1]
    positions = x[0].numel() // channels
    sizes, out = _tile_sizes(channels), torch.empty_like(x)
    kernels.normalise_param_grad_kernel[(splits, models)](
        x,
        dy,
        statistics,
        weight_grad,
        bias_grad,
        positions,
        triton.cdiv(positions, splits),
        weight_grad.stride(0),
        bias_grad.stride(0),
        **sizes,
    )
    sums = torch.empty(models, 2, channels, device=x.device)
    kernels.param_grad_totals_kernel[(models, triton.cdiv(channels, _CHANNELS_PER_PROGRAM))](
        weight_grad,
        bias_grad,
        sums,
        splits,
        weight_grad.stride(0),
        bias_grad.stride(0),
        C=channels,
        TILE=_CHANNELS_PER_PROGRAM,
        SPLITS_PADDED=triton.next_power_of_2(splits),
    )
    kernels.normalise_input_grad_kernel[(triton.cdiv(positions, sizes["ROWS"]), models)](
        x, dy, statistics, weight, sums, out, positions, weight.stride(0), **sizes
    )
    return out


def _tile_sizes(channels: int) -> dict[str, int]:
    """Return the pixels (`ROWS`) and padded channels that a program loads at a time."""
    padded = pad_channels(channels)
    return {"C": channels, "CP": padded, "ROWS": max(16, 4096 // padded)}
