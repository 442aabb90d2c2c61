"""Recurrent layers that always run in float32."""

from typing import Any

import torch
from torch import Tensor, nn


def run_rnn(layer: nn.GRU | nn.LSTM, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """Run a recurrent layer in float32, also within autocast.

    Under autocast to bfloat16, torch 2.11 runs cuDNN's recurrent layers in float16 and without the
    loss scaling that float16 needs. Long training on text then became NaN, each time after a batch
    of the longest sentences.

    Args:
        layer: Layer with `batch_first=True`.
        x: Inputs, (batch, T, size).
        state: Initial state, or None for zeros.

    Returns:
        Outputs, (batch, T, width), and the final state.
    """
    if isinstance(state, tuple):
        state = tuple(each.float() for each in state)
    elif state is not None:
        state = state.float()
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float(), state)
