"""Batched matrix product for linear layers and for layers that can be laid out as one."""

import triton
import triton.language as tl

from controlvae.lab.engines.stacked.kernels.epilogue import store_with_epilogue


@triton.jit
def _load_tile(source, row, column, row_stride, column_stride, rows, columns):
    """Load the elements (row, column) of a strided matrix of `rows` x `columns`; 0 outside."""
    return tl.load(
        source + row[:, None] * row_stride + column[None, :] * column_stride,
        mask=(row < rows)[:, None] & (column < columns)[None, :],
        other=0.0,
    )


@triton.jit
def matmul_kernel(
    left,
    right,
    bias,
    gate,
    out,
    column_sum,
    M,
    N,
    K,
    left_model,
    left_m,
    left_k,
    right_model,
    right_k,
    right_n,
    bias_model,
    bias_period,
    out_model,
    sum_model,
    gate_model,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    SUM: tl.constexpr,
    SLOPE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute out = left · right for each model, with the epilogue.

    Arguments `*_model` are strides between models.
    `SPLITS` > 1 is split-K: the sum over k is long and few programs would compute it, so each
    split writes its own partial sum. `SUM` also stores Σ_k right[k], the gradient of a bias.
    """
    model = (tl.program_id(2) // SPLITS).to(tl.int64)
    split = tl.program_id(2) % SPLITS
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    left += model * left_model
    right += model * right_model
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    per_split = (K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K) * BLOCK_K
    for start in range(split * per_split, min((split + 1) * per_split, K), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        a = _load_tile(left, m, k, left_m, left_k, M, K)
        b = _load_tile(right, k, n, right_k, right_n, K, N)
        acc = tl.dot(a.to(DOT), b.to(DOT), acc, input_precision=PRECISION)
        if SUM:
            total += tl.sum(b.to(tl.float32), axis=0)
    if BIAS:
        acc += tl.load(bias + model * bias_model + n % bias_period, mask=n < N, other=0.0)[None, :]
    if SUM:
        if tl.program_id(0) == 0:
            tl.store(column_sum + model * sum_model + n, total, mask=n < N)
    offset = m[:, None] * N + n[None, :]
    mask = (m < M)[:, None] & (n < N)[None, :]
    out += model * out_model + split * M * N
    gate_offset = offset + model * gate_model
    store_with_epilogue(acc, out, gate, offset, gate_offset, mask, RELU, GATE, SLOPE)
