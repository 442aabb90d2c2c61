"""Numeric precision, tile sizes and split counts of the stacked engine's kernels.

Tile sizes are near the best that `benchmarks/tiles.py` found on an H200.
"""

import torch
import triton
import triton.language as tl

# Programs that keep a large GPU busy.
_TARGET_PROGRAMS = 240


class PrecisionPolicy:
    """Data types of feature maps and matrix products.

    `fp32` and `tf32` keep feature maps in float32, `bf16` keeps them in bfloat16. Weights, sums,
    the optimiser and the controller are float32 or better in all three.

    Args:
        precision: `fp32`, `tf32` or `bf16`.
    """

    def __init__(self, precision: str) -> None:
        self.map_dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.dot_dtype = tl.bfloat16 if precision == "bf16" else tl.float32
        self.input_precision = "ieee" if precision == "fp32" else "tf32"


def pad_channels(channels: int) -> int:
    """Return the next power of two, at least 16, as `tl.dot` requires."""
    return max(16, triton.next_power_of_2(channels))


def channel_tile(channels: int) -> int:
    """Return the number of small channels per program; wider maps take more programs."""
    return min(64, pad_channels(channels))


def is_narrow(large: int) -> bool:
    """Return True if all sixteen taps of the large channels fit into one tile."""
    return 16 * large <= 64


def tile_config(
    operation: str, large: int, small: int, models: int, policy: PrecisionPolicy
) -> dict[str, int]:
    """Return the tile sizes, warps and pipeline stages of a convolution kernel.

    A single model has few programs, so its tiles are smaller. float32 takes twice the memory of
    bfloat16, and IEEE float32 products take many registers.

    Args:
        operation: `conv`, `conv_transpose` or `conv_weight_grad`.
        large: Channels of the large feature map.
        small: Channels of the small feature map.
        models: Models in the stack.
        policy: Data types of the products.

    Returns:
        Keyword arguments of the kernel launch.
    """
    match operation:
        case "conv":
            return _conv_config(large, small, models, policy)
        case "conv_transpose":
            return _conv_transpose_config(large, small, models, policy)
        case "conv_weight_grad":
            return _conv_weight_grad_config(large, small, models, policy)
    raise ValueError(f"operation must be conv, conv_transpose or conv_weight_grad, got {operation}")


def _tall_tile(policy: PrecisionPolicy) -> int:
    return 64 if policy.input_precision == "ieee" else 128


def _wide_tile(models: int, policy: PrecisionPolicy) -> int:
    return 128 if policy.map_dtype == torch.bfloat16 and models > 1 else 64


def _conv_config(large: int, small: int, models: int, policy: PrecisionPolicy) -> dict[str, int]:
    tall = is_narrow(large) or (small <= 32 and models > 1)
    return {
        "BLOCK_M": _tall_tile(policy) if tall else 64,
        "BLOCK_N": channel_tile(small),
        "BLOCK_K": min(64, pad_channels(16 * large)),
        "num_warps": 4,
        "num_stages": 2 if tall else 3,
    }


def _conv_transpose_config(
    large: int, small: int, models: int, policy: PrecisionPolicy
) -> dict[str, int]:
    deepest = 128 if policy.map_dtype == torch.bfloat16 and 4 * small <= 128 else 64
    return {
        "BLOCK_M": 64,
        "BLOCK_N": min(_wide_tile(models, policy), pad_channels(4 * large)),
        "BLOCK_K": min(deepest, pad_channels(4 * small)),
        "num_warps": 4,
        "num_stages": 2 if models > 1 else 3,
    }


def _conv_weight_grad_config(
    large: int, small: int, models: int, policy: PrecisionPolicy
) -> dict[str, int]:
    if is_narrow(large):
        return {
            "BLOCK_K": _tall_tile(policy),
            "BLOCK_M": pad_channels(16 * large),
            "BLOCK_N": channel_tile(small),
            "num_warps": 4,
            "num_stages": 2,
        }
    # One program computes a whole gradient, or half of it, if registers and models suffice.
    whole = (
        _wide_tile(models, policy) == 128
        and large == 32
        and (small == 32 or (small == 64 and models > 16))
    )
    widest = 128 if policy.map_dtype == torch.bfloat16 else 64
    return {
        "BLOCK_K": 32,
        "BLOCK_M": 128 if whole else 64,
        "BLOCK_N": min(widest, pad_channels(4 * small)),
        "num_warps": 8 if whole and models <= 16 else 4,
        "num_stages": 4 if whole else 3,
    }


def tiles_per_program(programs: int, config: dict[str, int], small: int) -> int:
    """Return how many row tiles a program of `conv_transpose` computes one after the other.

    More than one pays off if the weights are then loaded only once.

    Args:
        programs: Programs of a launch with one tile each.
        config: Tile sizes from `tile_config`.
        small: Channels of the small feature map.
    """
    loads_weights_once = config["BLOCK_K"] >= 4 * small
    return 4 if loads_weights_once and programs >= 4 * _TARGET_PROGRAMS else 1


def weight_grad_splits(large: int, small: int, models: int, policy: PrecisionPolicy) -> int:
    """Return the number of splits of a weight gradient's sum over pixels.

    There are enough splits to fill a large GPU. The optimiser reads every partial sum again, so
    wide layers and tall stacks get few. Measured on an H200.

    Args:
        large: Channels of the large feature map.
        small: Channels of the small feature map.
        models: Models in the stack.
        policy: Data types of the products.
    """
    if is_narrow(large):
        return 128 if models <= 8 else 64
    config = tile_config("conv_weight_grad", large, small, models, policy)
    tiles = triton.cdiv(4 * large, config["BLOCK_M"]) * triton.cdiv(4 * small, config["BLOCK_N"])
    splits = max(2, min(64, _TARGET_PROGRAMS // (tiles * models)))
    return 1 << splits.bit_length() - 1  # the largest power of two not above it


def large_bias_splits(large: int, splits: int) -> int:
    """Return the number of partial sums of the bias gradient of a large feature map.

    The four pixels of a block are summed separately, except by the kernel for few channels.
    """
    return splits if is_narrow(large) else 4 * splits


def batch_norm_splits(models: int) -> int:
    """Return the number of splits of a batch norm's sums over pixels."""
    return max(16, 512 // models)
