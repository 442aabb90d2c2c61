"""Launches of the batched matrix product."""

import torch
import triton
from torch import Tensor

from controlvae.lab.engines.stacked.kernels.dense import matmul_kernel
from controlvae.lab.engines.stacked.tiling import PrecisionPolicy


def matmul(
    left: Tensor,
    right: Tensor,
    out: Tensor,
    policy: PrecisionPolicy,
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    gate: Tensor | None = None,
    column_sum: Tensor | None = None,
    slope: float = 0.0,
) -> Tensor:
    """Compute out = left · right for each model, with bias, ReLU or gate, and return `out`.

    Args:
        left: (models, m, k), any strides.
        right: (models, k, n), any strides.
        out: Receives the product, (models, m, n).
        policy: Data types of the products.
        bias: Added to every row; one shorter than a row repeats, for flattened feature maps.
        relu: Rectify the output.
        gate: ReLU output, shaped like `out`, whose sign gates it: a ReLU's gradient.
        column_sum: Receives Σ_k right[k], the gradient of a bias, (models, n).
        slope: Slope of the rectifier below zero.
    """
    models, m, k = left.shape
    n = right.shape[2]
    tile = 64 if n >= 512 and m >= 64 else 32
    grid = (triton.cdiv(m, 64), triton.cdiv(n, tile), models)
    matmul_kernel[grid](
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
        BLOCK_M=64,
        BLOCK_N=tile,
        BLOCK_K=64,
        SPLITS=1,
        BIAS=bias is not None,
        RELU=relu,
        GATE=gate is not None,
        SUM=column_sum is not None,
        SLOPE=slope,
        DOT=policy.dot_dtype,
        PRECISION=policy.input_precision,
    )
    return out


def split_k_matmul(left: Tensor, right: Tensor, policy: PrecisionPolicy) -> Tensor:
    """Compute left · right for each model by split-K: a long sum with a small result.

    Args:
        left: (models, m, k), any strides.
        right: (models, k, n), any strides.
        policy: Data types of the products.

    Returns:
        (models, m, n), float32.
    """
    models, m, k = left.shape
    n, splits = right.shape[2], max(1, min(16, k // 256))
    partials = torch.empty(models, splits, m, n, device=left.device)
    matmul_kernel[(triton.cdiv(m, 64), triton.cdiv(n, 32), models * splits)](
        left,
        right,
        None,
        None,
        partials,
        None,
        m,
        n,
        k,
        *left.stride(),
        *right.stride(),
        0,
        1,
        partials.stride(0),
        0,
        0,
        BLOCK_M=64,
        BLOCK_N=32,
        BLOCK_K=64,
        SPLITS=splits,
        BIAS=False,
        RELU=False,
        GATE=False,
        SUM=False,
        SLOPE=0.0,
        DOT=policy.dot_dtype,
        PRECISION=policy.input_precision,
    )
    return partials.sum(1)
