"""Recurrent layers, with the range of float32."""

from typing import Any

import torch
from torch import Tensor, nn


def run(layer: nn.GRU | nn.LSTM, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """What the layer gives, in float32 wherever it is called.

    Within an autocast to bfloat16, torch 2.11 runs cuDNN's recurrent layers in float16 all the same, without the loss
    scaling that float16 needs. Long training on text became NaN, each time after a batch of the longest sentences.
    """
    if isinstance(state, tuple):
        state = tuple(each.float() for each in state)
    elif state is not None:
        state = state.float()
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float(), state)
