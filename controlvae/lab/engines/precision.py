"""What matrix products are computed in, where torch's own kernels do them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from controlvae.lab.config.experiment import Precision


@contextmanager
def products_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """bf16, tf32 or fp32 products on a GPU, with sums, weights and losses in float32. A CPU computes in float32."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        with (
            torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "fp32"),
            torch.autocast(
                "cuda", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False
            ),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
