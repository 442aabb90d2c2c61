"""The products a stack of models is made of: shapes, grids and launches around the Triton kernels."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from controlvae.lab.engines.stacked.kernels import conv as maps
from controlvae.lab.engines.stacked.kernels import dense, norm, optimiser
from controlvae.lab.engines.stacked.kernels import unpack as pictures


class Precision:
    """How the products are computed: `fp32` and `tf32` keep maps in float32, `bf16` keeps them in bfloat16.

    Weights, sums, the optimiser and the controller are float32 or better in all three.
    """

    def __init__(self, precision: str) -> None:
        self.maps = torch.bfloat16 if precision == "bf16" else torch.float32
        self.dot = tl.bfloat16 if precision == "bf16" else tl.float32
        self.products = "ieee" if precision == "fp32" else "tf32"


def _padded(channels: int) -> int:
    """tl.dot wants powers of two from 16 up."""
    return max(16, triton.next_power_of_2(channels))


def _tile(channels: int) -> int:
    """Small channels that a program computes at once; wider maps take more programs."""
    return min(64, _padded(channels))


def _few(large: int) -> bool:
    """So few large channels that all sixteen taps of them are one narrow product."""
    return 16 * large <= 64


def _config(
    operation: str, large: int, small: int, models: int, arithmetic: Precision
) -> dict[str, int]:
    """What a program works on at once, its warps and its pipeline depth: near the best of `examples/judge_tiles.py`.

    A single model has few programs, so they are made smaller; float32 takes twice the room of bfloat16, and exact
    products of it many registers.
    """
    rounded = arithmetic.maps == torch.bfloat16
    many = 64 if arithmetic.products == "ieee" else 128
    if operation == "gather":
        tall = _few(large) or (small <= 32 and models > 1)
        sizes = {
            "ROWS": many if tall else 64,
            "TILE": _tile(small),
            "DEPTH": min(64, _padded(16 * large)),
        }
        return {**sizes, "num_warps": 4, "num_stages": 2 if tall else 3}
    wide = 128 if rounded and models > 1 else 64
    if operation == "spread":
        depth = min(128 if rounded and 4 * small <= 128 else 64, _padded(4 * small))
        sizes = {"ROWS": 64, "TILE": min(wide, _padded(4 * large)), "DEPTH": depth}
        return {**sizes, "num_warps": 4, "num_stages": 2 if models > 1 else 3}
    if _few(large):
        return {
            "ROWS": many,
            "SLICE": _padded(16 * large),
            "TILE": _tile(small),
            "num_warps": 4,
            "num_stages": 2,
        }
    # A program with a whole gradient, or half of it, where there is room for that and models enough.
    whole = wide == 128 and large == 32 and (small == 32 or (small == 64 and models > 16))
    sizes = {
        "ROWS": 32,
        "SLICE": 128 if whole else 64,
        "TILE": min(128 if rounded else 64, _padded(4 * small)),
    }
    return {
        **sizes,
        "num_warps": 8 if whole and models <= 16 else 4,
        "num_stages": 4 if whole else 3,
    }


def _turns(programs: int, config: dict[str, int], small: int) -> int:
    """How many tiles a program of `spread` takes one after the other: some, where its weights then are read once."""
    return 4 if config["DEPTH"] >= 4 * small and programs >= 4 * _PROGRAMS else 1


_PROGRAMS = 240  # that keep a large card busy


def parts(large: int, small: int, models: int, arithmetic: Precision) -> int:
    """Into how many parts a weight gradient's sum over pixels is split: enough to fill a large card, measured.

    Every part is read again by the optimiser, so wide layers and tall stacks get few.
    """
    if _few(large):
        return 128 if models <= 8 else 64
    config = _config("outer", large, small, models, arithmetic)
    tiles = triton.cdiv(4 * large, config["SLICE"]) * triton.cdiv(4 * small, config["TILE"])
    wanted = max(2, min(64, _PROGRAMS // (tiles * models)))
    return 1 << wanted.bit_length() - 1  # a power of two not above it


def large_bias_parts(large: int, parts: int) -> int:
    """Of the gradient of a large map's bias: that of a block comes in quarters, but for a few channels."""
    return parts if _few(large) else 4 * parts


def _model_stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


def gather(
    large: Tensor,
    weight: Tensor,
    arithmetic: Precision,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
) -> Tensor:
    """small = Σ_tap large · W[tap], plus bias, rectified, or gated by an activation: (models, batch, H, W, small)."""
    models, batch, height, width, cl = large.shape
    cs = weight.shape[-1]
    out = torch.empty(
        models, batch, height // 2, width // 2, cs, dtype=arithmetic.maps, device=large.device
    )
    positions = batch * height * width // 4
    config = _config("gather", cl, cs, models, arithmetic)
    maps.gather_kernel[
        (triton.cdiv(positions, config["ROWS"]), triton.cdiv(cs, config["TILE"]), models)
    ](
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
        DOT=arithmetic.dot,
        PRECISION=arithmetic.products,
    )
    return out


def spread(
    small: Tensor,
    weight: Tensor,
    arithmetic: Precision,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """large = Σ_tap small · W[tap]ᵀ, plus bias, rectified, or gated by an activation: (models, batch, 2H, 2W, cl)."""
    models, batch, height, width, cs = small.shape
    cl = weight.shape[-2]
    out = torch.empty(
        models,
        batch,
        2 * height,
        2 * width,
        cl,
        dtype=dtype or arithmetic.maps,
        device=small.device,
    )
    blocks = batch * (height + 1) * (width + 1)
    config = _config("spread", cl, cs, models, arithmetic)
    tiles = triton.cdiv(4 * cl, config["TILE"])
    config = {
        "TURNS": _turns(triton.cdiv(blocks, config["ROWS"]) * tiles * models, config, cs),
        **config,
    }
    maps.spread_kernel[(triton.cdiv(blocks, config["ROWS"] * config["TURNS"]), tiles, models)](
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
        DOT=arithmetic.dot,
        PRECISION=arithmetic.products,
    )
    return out


def outer(
    large: Tensor,
    small: Tensor,
    grad: Tensor,
    bias_grad: Tensor,
    arithmetic: Precision,
    *,
    large_bias: bool,
) -> None:
    """W[tap] = Σ_pixels largeᵀ · small, in parts: grad (models, parts, 4, 4, large, small).

    The bias belongs to the large map of a transposed convolution, whose gradient has `large_bias_parts`, or to the
    small map of a convolution: bias_grad (models, parts, channels).
    """
    models, batch, height, width, cs = small.shape
    cl, parts = large.shape[-1], grad.shape[1]
    config = _config("outer", cl, cs, models, arithmetic)
    if _few(cl):
        kernel, summed, programs = (
            maps.outer_few_kernel,
            batch * height * width,
            triton.cdiv(cs, config["TILE"]),
        )
    else:
        kernel, summed = maps.outer_kernel, batch * (height + 1) * (width + 1)
        programs = triton.cdiv(4 * cl, config["SLICE"]) * triton.cdiv(4 * cs, config["TILE"])
    kernel[(programs, parts, models)](
        large,
        small,
        grad,
        bias_grad,
        summed,
        triton.cdiv(summed, parts),
        grad.stride(0),
        bias_grad.stride(0),
        H=height,
        W=width,
        CL=cl,
        CS=cs,
        **config,
        LARGE_BIAS=large_bias,
        DOT=arithmetic.dot,
        PRECISION=arithmetic.products,
    )


def matmul(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    arithmetic: Precision,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
    column_sum: Tensor | None = None,
    slope: float = 0.0,
) -> Tensor:
    """out = left · right for each model, plus bias, rectified or gated; `column_sum` receives Σ_k right[k].

    A bias shorter than a row of `out` repeats: a channel's bias serves all pixels of a map laid out flat. `slope` is
    the rectifier's below zero.
    """
    models, m, k = left.shape
    n = right.shape[2]
    tile = 64 if n >= 512 and m >= 64 else 32
    grid = (triton.cdiv(m, 64), triton.cdiv(n, tile), models)
    dense.matmul_kernel[grid](
        left,
        right,
        bias,
        gate,
        out,
        column_sum,
        m,
        n,
        k,
        *left.stride(),
        *right.stride(),
        0 if bias is None else bias.stride(0),
        1 if bias is None else bias.shape[1],
        out.stride(0),
        0 if column_sum is None else column_sum.stride(0),
        0 if gate is None else gate.stride(0),
        ROWS=64,
        TILE=tile,
        DEPTH=64,
        PARTS=1,
        BIAS=bias is not None,
        RELU=relu,
        GATE=gate is not None,
        SUM=column_sum is not None,
        SLOPE=slope,
        DOT=arithmetic.dot,
        PRECISION=arithmetic.products,
    )
    return out


def long_matmul(left: Tensor, right: Tensor, arithmetic: Precision) -> Tensor:
    """left · right for each model where the sum is long and the result small: in parts, then added. Float32."""
    models, m, k = left.shape
    n, parts = right.shape[2], max(1, min(16, k // 256))
    out = torch.empty(models, parts, m, n, device=left.device)
    dense.matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 32), models * parts)](
        left,
        right,
        None,
        None,
        out,
        None,
        m,
        n,
        k,
        *left.stride(),
        *right.stride(),
        0,
        1,
        out.stride(0),
        0,
        0,
        ROWS=64,
        TILE=32,
        DEPTH=64,
        PARTS=parts,
        BIAS=False,
        RELU=False,
        GATE=False,
        SUM=False,
        SLOPE=0.0,
        DOT=arithmetic.dot,
        PRECISION=arithmetic.products,
    )
    return out.sum(1)


def unpack(
    bits: Tensor, indices: Tensor, step: Tensor, shape: tuple[int, int, int], dtype: torch.dtype
) -> Tensor:
    """Binary pictures from their bits: (models, batch, height, width, channels).

    `indices`, (steps, models, batch), has the numbers of those that every step meets; `step`, a number on the device,
    says which it is.
    """
    out = _pictures(indices, shape, dtype)
    grid = (out[..., 0, 0, 0].numel(), triton.cdiv(bits.shape[1] * 8, 1024))
    pictures.unpack_kernel[grid](
        bits,
        indices,
        step,
        out,
        bits.shape[1],
        *indices.stride()[:2],
        BATCH=indices.shape[2],
        CHANNELS=shape[0],
        VALUES=1024,
    )
    return out


def unpack_bytes(
    rows: Tensor, indices: Tensor, step: Tensor, shape: tuple[int, int, int], dtype: torch.dtype
) -> Tensor:
    """The same from their bytes, in [0, 1] or, as bytes, as they are."""
    out = _pictures(indices, shape, dtype)
    grid = (out[..., 0, 0, 0].numel(), triton.cdiv(rows.shape[1], 4096))
    pictures.unpack_bytes_kernel[grid](
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


def _pictures(indices: Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Room for one step's, whose numbers lie side by side within a batch."""
    assert indices.stride(2) == 1
    channels, height, width = shape
    return torch.empty(
        *indices.shape[1:], height, width, channels, dtype=dtype, device=indices.device
    )


_SUMMED = 16  # channels whose parts one program sums


def _rows(channels: int) -> dict[str, int]:
    """How much of a map one program of the batch norm takes at a time."""
    padded = _padded(channels)
    return {"C": channels, "CP": padded, "ROWS": max(16, 4096 // padded)}


def batch_statistics(
    x: Tensor,
    parts: int,
    running_mean: Tensor,
    running_variance: Tensor,
    epsilon: float,
    momentum: float,
) -> Tensor:
    """Means and 1 / standard deviations over all pixels of a map, (models, 2, channels); moves the running ones."""
    models, channels, positions = x.shape[0], x.shape[-1], x[0].numel() // x.shape[-1]
    partial = torch.empty(models, parts, 2, channels, device=x.device)
    statistics = torch.empty(models, 2, channels, device=x.device)
    sizes = _rows(channels)
    norm.moments_kernel[(parts, models)](
        x, partial, positions, triton.cdiv(positions, parts), **sizes
    )
    norm.statistics_kernel[(models, triton.cdiv(channels, _SUMMED))](
        x,
        partial,
        statistics,
        running_mean,
        running_variance,
        positions,
        parts,
        C=channels,
        TILE=_SUMMED,
        PARTS=triton.next_power_of_2(parts),
        EPSILON=epsilon,
        MOMENTUM=momentum,
    )
    return statistics


def normalise(x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """(x - mean) / sd · weight + bias, rectified."""
    positions, sizes, out = x[0].numel() // x.shape[-1], _rows(x.shape[-1]), torch.empty_like(x)
    norm.normalise_kernel[(triton.cdiv(positions, sizes["ROWS"]), len(x))](
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


def normalise_gradient(
    x: Tensor,
    dy: Tensor,
    statistics: Tensor,
    weight: Tensor,
    weight_grad: Tensor,
    bias_grad: Tensor,
) -> Tensor:
    """The input's gradient; leaves the weight's and the bias's in their parts, (models, parts, channels)."""
    models, channels, positions, parts = (
        len(x),
        x.shape[-1],
        x[0].numel() // x.shape[-1],
        weight_grad.shape[1],
    )
    sizes, out = _rows(channels), torch.empty_like(x)
    norm.normalise_sums_kernel[(parts, models)](
        x,
        dy,
        statistics,
        weight_grad,
        bias_grad,
        positions,
        triton.cdiv(positions, parts),
        weight_grad.stride(0),
        bias_grad.stride(0),
        **sizes,
    )
    sums = torch.empty(models, 2, channels, device=x.device)
    norm.totals_kernel[(models, triton.cdiv(channels, _SUMMED))](
        weight_grad,
        bias_grad,
        sums,
        parts,
        weight_grad.stride(0),
        bias_grad.stride(0),
        C=channels,
        TILE=_SUMMED,
        PARTS=triton.next_power_of_2(parts),
    )
    norm.normalise_input_kernel[(triton.cdiv(positions, sizes["ROWS"]), models)](
        x, dy, statistics, weight, sums, out, positions, weight.stride(0), **sizes
    )
    return out


def adam(
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    operand: Tensor,
    partials: Tensor,
    table: Tensor,
    counter: Tensor,
    rate: Tensor,
    block: int,
    *,
    beta1: float,
    beta2: float,
    epsilon: float = 1e-8,
) -> None:
    """One Adam step for all models from their partial gradients. weight, first, second: (models, parameters).

    `operand` is the weights as products take them: the same memory, or a rounded copy, which is written anew.
    """
    models, parameters = weight.shape
    optimiser.adam_kernel[(len(table), models)](
        weight,
        first,
        second,
        operand,
        partials,
        table,
        counter,
        rate,
        parameters,
        partials.shape[1],
        BETA1=beta1,
        BETA2=beta2,
        LOG_BETA1=math.log(beta1) if beta1 else -math.inf,
        LOG_BETA2=math.log(beta2) if beta2 else -math.inf,
        EPSILON=epsilon,
        BLOCK=block,
        ROUNDED=operand is not weight,
    )
