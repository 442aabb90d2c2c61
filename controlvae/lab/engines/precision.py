"""Precision of matrix products that torch's own kernels compute."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from controlvae.lab.config.experiment import Precision


@contextmanager
def product_precision(
    precision: Precision, device: torch.device, benchmark: bool = False
) -> Iterator[None]:
    """Compute products in bf16, tf32 or fp32 on a GPU within this context.

    Sums, weights and losses stay in float32. A CPU always computes in float32.

    Args:
        precision: Precision of products.
        device: Device of the model.
        benchmark: Let cuDNN time its convolutions and keep the fastest.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    tf32 = torch.backends.cudnn.flags(
        enabled=True, benchmark=benchmark, allow_tf32=precision != "fp32"
    )
    bf16 = torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
    try:
        with tf32, bf16:
            yield
    finally:
        torch.set_float32_matmul_precision(before)
