"""Products of matrices, for linear layers and what can be laid out as one."""

import triton
import triton.language as tl

from controlvae.lab.engines.stacked.kernels.epilogue import finish


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
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    GATE: tl.constexpr,
    SUM: tl.constexpr,
    SLOPE: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    model = (tl.program_id(2) // PARTS).to(tl.int64)
    part = (
        tl.program_id(2) % PARTS
    )  # of the sum over k, where it is long and few programs would do it
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    left += model * left_model
    right += model * right_model
    acc = tl.zeros((ROWS, TILE), dtype=tl.float32)
    total = tl.zeros((TILE,), dtype=tl.float32)
    per_part = (K + PARTS * DEPTH - 1) // (PARTS * DEPTH) * DEPTH
    for start in range(part * per_part, min((part + 1) * per_part, K), DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = tl.load(
            left + m[:, None] * left_m + k[None, :] * left_k,
            mask=(m < M)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        b = tl.load(
            right + k[:, None] * right_k + n[None, :] * right_n,
            mask=(k < K)[:, None] & (n < N)[None, :],
            other=0.0,
        )
        acc = tl.dot(a.to(DOT), b.to(DOT), acc, input_precision=PRECISION)
        if SUM:
            total += tl.sum(b.to(tl.float32), axis=0)
    if BIAS:
        acc += tl.load(bias + model * bias_model + n % bias_period, mask=n < N, other=0.0)[None, :]
    if SUM:
        if tl.program_id(0) == 0:
            tl.store(column_sum + model * sum_model + n, total, mask=n < N)
    offset = m[:, None] * N + n[None, :]
    known = (m < M)[:, None] & (n < N)[None, :]
    out += model * out_model + part * M * N
    finish(acc, out, gate, offset, offset + model * gate_model, known, RELU, GATE, SLOPE)
