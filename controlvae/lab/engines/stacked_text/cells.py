"""Cells of LSTM and GRU: one step and its gradient, from products that were computed before.

Rows are those of all models together. On a GPU each cell is one Triton kernel instead of some ten
small operations; a recurrence has one such step per word, forwards and backwards.
"""

import importlib.util
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor


class LSTMStep(NamedTuple):
    """New hidden and cell state, (..., width), and what the gradient needs, (..., 4 width)."""

    hidden: Tensor
    cell: Tensor
    activations: Tensor


class GRUStep(NamedTuple):
    """New hidden state, (..., width), and what the gradient needs, (..., 4 width)."""

    hidden: Tensor
    activations: Tensor


def lstm_step(from_input: Tensor, from_hidden: Tensor, cell: Tensor) -> LSTMStep:
    """Take one step of an LSTM.

    Args:
        from_input: Products and biases of the input, (..., 4 width), in torch's order: input,
            forget, candidate, output.
        from_hidden: Products of the hidden state, (..., 4 width).
        cell: Cell state, (..., width).
    """
    if _use_kernels(cell):
        from controlvae.lab.engines.stacked_text import launch

        return LSTMStep(*launch.lstm_step(from_input, from_hidden, cell))
    enter, forget, candidate, leave = (from_input + from_hidden).chunk(4, -1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    candidate = candidate.tanh()
    cell = forget * cell + enter * candidate
    activations = torch.cat([enter, forget, candidate, leave], -1)
    return LSTMStep(leave * cell.tanh(), cell, activations)


def lstm_step_gradient(
    activations: Tensor, cell: Tensor, new_cell: Tensor, d_hidden: Tensor, d_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates, (..., 4 width), and of the cell state before the step.

    Args:
        activations: Activations that `lstm_step` returned.
        cell: Cell state before the step.
        new_cell: Cell state after the step.
        d_hidden: Gradient of the new hidden state.
        d_cell: Gradient of the new cell state.
    """
    if _use_kernels(cell):
        from controlvae.lab.engines.stacked_text import launch

        return launch.lstm_gradient(activations, cell, new_cell, d_hidden, d_cell)
    enter, forget, candidate, leave = activations.chunk(4, -1)
    squashed = new_cell.tanh()
    d_cell = d_cell + d_hidden * leave * (1 - squashed * squashed)
    d_gates = [
        d_cell * candidate * enter * (1 - enter),
        d_cell * cell * forget * (1 - forget),
        d_cell * enter * (1 - candidate * candidate),
        d_hidden * squashed * leave * (1 - leave),
    ]
    return torch.cat(d_gates, -1), d_cell * forget


def gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> GRUStep:
    """Take one step of a GRU.

    Args:
        from_input: Products and biases of the input, (..., 3 width), in torch's order: reset,
            update, candidate.
        from_hidden: Products and biases of the hidden state, (..., 3 width).
        hidden: Hidden state, (..., width).
    """
    if _use_kernels(hidden):
        from controlvae.lab.engines.stacked_text import launch

        return GRUStep(*launch.gru_step(from_input, from_hidden, hidden))
    reset_input, update_input, candidate_input = from_input.chunk(3, -1)
    reset_hidden, update_hidden, candidate_hidden = from_hidden.chunk(3, -1)
    reset = (reset_input + reset_hidden).sigmoid()
    update = (update_input + update_hidden).sigmoid()
    candidate = (candidate_input + reset * candidate_hidden).tanh()
    new_hidden = candidate + update * (hidden - candidate)
    return GRUStep(new_hidden, torch.cat([reset, update, candidate, candidate_hidden], -1))


def gru_step_gradient(
    activations: Tensor, hidden: Tensor, d_hidden: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input products, hidden products and of the hidden state itself.

    The last one leaves out the path through the hidden products.

    Args:
        activations: Activations that `gru_step` returned.
        hidden: Hidden state before the step.
        d_hidden: Gradient of the new hidden state.
    """
    if _use_kernels(hidden):
        from controlvae.lab.engines.stacked_text import launch

        return launch.gru_gradient(activations, hidden, d_hidden)
    reset, update, candidate, candidate_hidden = activations.chunk(4, -1)
    d_candidate = d_hidden * (1 - update) * (1 - candidate * candidate)
    d_update = d_hidden * (hidden - candidate) * update * (1 - update)
    d_reset = d_candidate * candidate_hidden * reset * (1 - reset)
    d_input = torch.cat([d_reset, d_update, d_candidate], -1)
    d_from_hidden = torch.cat([d_reset, d_update, d_candidate * reset], -1)
    return d_input, d_from_hidden, d_hidden * update


def _use_kernels(x: Tensor) -> bool:
    return x.is_cuda and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
