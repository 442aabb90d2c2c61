"""Launches of the kernels of LSTM and GRU cells."""

import torch
import triton
from torch import Tensor

from controlvae.lab.engines.stacked_text.kernels import cells as kernels

_BLOCK = 1024


def lstm_step(
    from_input: Tensor, from_hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new hidden state, the new cell state and the activations. See `lstm_step`.

    Args:
        from_input: Products and biases of the input, (..., 4 width).
        from_hidden: Products of the hidden state, (..., 4 width).
        cell: Cell state, (..., width).
    """
    inputs = [x.contiguous() for x in (from_input, from_hidden, cell)]
    outputs = torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(inputs[1])
    _launch(kernels.lstm_step_kernel, cell, *inputs, *outputs)
    return outputs


def lstm_gradient(
    activations: Tensor, cell: Tensor, new_cell: Tensor, d_hidden: Tensor, d_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of one step. See `lstm_step_gradient`.

    Args:
        activations: Activations that `lstm_step` returned.
        cell: Cell state before the step.
        new_cell: Cell state after the step.
        d_hidden: Gradient of the new hidden state.
        d_cell: Gradient of the new cell state.
    """
    inputs = [x.contiguous() for x in (activations, cell, new_cell, d_hidden, d_cell)]
    outputs = torch.empty_like(inputs[0]), torch.empty_like(inputs[1])
    _launch(kernels.lstm_gradient_kernel, inputs[1], *inputs, *outputs)
    return outputs


def gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the new hidden state and the activations. See `gru_step`.

    Args:
        from_input: Products and biases of the input, (..., 3 width).
        from_hidden: Products and biases of the hidden state, (..., 3 width).
        hidden: Hidden state, (..., width).
    """
    inputs = [x.contiguous() for x in (from_input, from_hidden, hidden)]
    activations = hidden.new_empty(*hidden.shape[:-1], 4 * hidden.shape[-1])
    outputs = torch.empty_like(inputs[2]), activations
    _launch(kernels.gru_step_kernel, inputs[2], *inputs, *outputs)
    return outputs


def gru_gradient(
    activations: Tensor, hidden: Tensor, d_hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of one step. See `gru_step_gradient`.

    Args:
        activations: Activations that `gru_step` returned.
        hidden: Hidden state before the step.
        d_hidden: Gradient of the new hidden state.
    """
    inputs = [x.contiguous() for x in (activations, hidden, d_hidden)]
    product = (*hidden.shape[:-1], 3 * hidden.shape[-1])
    outputs = hidden.new_empty(product), hidden.new_empty(product), torch.empty_like(inputs[1])
    _launch(kernels.gru_gradient_kernel, inputs[1], *inputs, *outputs)
    return outputs


def _launch(kernel: triton.JITFunction, state: Tensor, *tensors: Tensor) -> None:
    """Launch a kernel with one thread per value of `state`."""
    size = state.numel()
    kernel[(triton.cdiv(size, _BLOCK),)](*tensors, size, state.shape[-1], BLOCK=_BLOCK)
