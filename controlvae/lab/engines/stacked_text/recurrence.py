"""LSTM and GRU layers whose recurrence is one chain of batched products for all models.

`torch.func.vmap` has no rule for torch's recurrent layers. These have one: under vmap, a step is
one product for all models and one cell, so a recurrence is as long for many models as for one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.lab.engines.stacked_text.cells import (
    gru_step,
    gru_step_gradient,
    lstm_step,
    lstm_step_gradient,
)


class _LSTMSequence(torch.autograd.Function):
    """Run an LSTM, given the products of its inputs.

    Time is the first axis of sequences. Models, if there are several, are the next one.
    """

    @staticmethod
    def forward(
        from_input: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states, cell states and activations of all steps.

        Args:
            from_input: Products and biases of the inputs, (T, models, batch, 4 width).
            weight: Weight of the hidden state, (models, 4 width, width).
            hidden: Initial hidden state, (models, batch, width).
            cell: Initial cell state, (models, batch, width).
        """
        steps = []
        for product in from_input:
            step = lstm_step(product, hidden @ weight.mT, cell)
            hidden, cell = step.hidden, step.cell
            steps.append(step)
        hiddens, cells, activations = (torch.stack(each) for each in zip(*steps, strict=True))
        return hiddens, cells, activations

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the states for the gradient."""
        _, weight, hidden, cell = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(weight, hidden, cell, *output)

    @staticmethod
    def backward(ctx: Any, d_hiddens: Tensor, d_cells: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of all inputs.

        Args:
            ctx: Context with the saved states.
            d_hiddens: Gradient of the hidden states, (T, models, batch, width).
            d_cells: Gradient of the cell states, (T, models, batch, width).
        """
        weight, hidden, cell, hiddens, cells, activations = ctx.saved_tensors
        d_hidden, d_cell = torch.zeros_like(hidden), torch.zeros_like(cell)
        d_gates = torch.empty_like(activations)
        for t in reversed(range(len(activations))):
            before = cells[t - 1] if t else cell
            d_gates[t], d_cell = lstm_step_gradient(
                activations[t], before, cells[t], d_hidden + d_hiddens[t], d_cell + d_cells[t]
            )
            d_hidden = d_gates[t] @ weight
        d_weight = _weight_gradient(d_gates, hidden, hiddens)
        return d_gates, d_weight, d_hidden, d_cell

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> Any:
        """Run all models at once."""
        return _LSTMSequence.apply(*_put_models_first(info, in_dims, args)), (1, 1, 1)


class _GRUSequence(torch.autograd.Function):
    """Run a GRU, given the products of its inputs. See `_LSTMSequence`."""

    @staticmethod
    def forward(
        from_input: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states and activations of all steps.

        Args:
            from_input: Products and biases of the inputs, (T, models, batch, 3 width).
            weight: Weight of the hidden state, (models, 3 width, width).
            bias: Bias of the hidden state's product, (models, 3 width).
            hidden: Initial hidden state, (models, batch, width).
        """
        steps = []
        for product in from_input:
            from_hidden = _affine(bias.unsqueeze(-2), hidden, weight.mT)
            step = gru_step(product, from_hidden, hidden)
            hidden = step.hidden
            steps.append(step)
        hiddens, activations = (torch.stack(each) for each in zip(*steps, strict=True))
        return hiddens, activations

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the states for the gradient."""
        _, weight, _, hidden = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, hidden, *output)

    @staticmethod
    def backward(ctx: Any, d_hiddens: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of all inputs.

        Args:
            ctx: Context with the saved states.
            d_hiddens: Gradient of the hidden states, (T, models, batch, width).
        """
        weight, hidden, hiddens, activations = ctx.saved_tensors
        d_hidden = torch.zeros_like(hidden)
        d_inputs, d_products = [], []
        for t in reversed(range(len(activations))):
            before = hiddens[t - 1] if t else hidden
            d_input, d_product, d_before = gru_step_gradient(
                activations[t], before, d_hidden + d_hiddens[t]
            )
            d_hidden = _affine(d_before, d_product, weight)
            d_inputs.append(d_input)
            d_products.append(d_product)
        d_from_input, d_from_hidden = torch.stack(d_inputs[::-1]), torch.stack(d_products[::-1])
        d_weight = _weight_gradient(d_from_hidden, hidden, hiddens)
        return d_from_input, d_weight, d_from_hidden.sum((0, -2)), d_hidden

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> Any:
        """Run all models at once."""
        return _GRUSequence.apply(*_put_models_first(info, in_dims, args)), (1, 1)


def _put_models_first(
    info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]
) -> list[Tensor]:
    """Return tensors with an axis of models: first, but after time in the products of inputs."""
    batched = []
    for number, (tensor, dim) in enumerate(zip(tensors, in_dims, strict=True)):
        place = 1 if number == 0 else 0
        if dim is None:
            sizes = list(tensor.shape)
            sizes.insert(place, info.batch_size)
            batched.append(tensor.unsqueeze(place).expand(sizes))
        else:
            batched.append(tensor.movedim(dim, place))
    return batched


def _weight_gradient(d_products: Tensor, first: Tensor, hiddens: Tensor) -> Tensor:
    """Return the gradient of the hidden state's weight, (models, products, width).

    Args:
        d_products: Gradient of the products, (T, models, batch, products).
        first: Initial hidden state, (models, batch, width).
        hiddens: Hidden states after each step, (T, models, batch, width).
    """
    before = torch.cat([first.unsqueeze(0), hiddens[:-1]])
    rows, columns = (x.movedim(0, -3).flatten(-3, -2) for x in (d_products, before))
    return rows.mT @ columns


def _affine(offset: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return offset + x @ weight, for one model or for many."""
    return torch.baddbmm(offset, x, weight) if x.ndim == 3 else torch.addmm(offset, x, weight)


class StackableLSTM(nn.Module):
    """LSTM layer that takes over the parameters of torch's and can be stacked by vmap."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        _check_layer(layer)
        self.width, self.bias = layer.hidden_size, layer.bias
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs, (batch, T, width), and the last hidden and cell state.

        Args:
            x: Inputs, (batch, T, size).
            state: Initial hidden and cell state, each (1, batch, width), or None for zeros.
        """
        bias = self.bias_ih_l0 + self.bias_hh_l0 if self.bias else None
        from_input = F.linear(x, self.weight_ih_l0, bias).transpose(0, 1)
        if state is None:
            hidden = cell = x.new_zeros(x.shape[0], self.width)
        else:
            hidden, cell = state[0][0], state[1][0]
        hiddens, cells, _ = _LSTMSequence.apply(from_input, self.weight_hh_l0, hidden, cell)
        return hiddens.transpose(0, 1), (hiddens[-1:], cells[-1:])


class StackableGRU(nn.Module):
    """GRU layer that takes over the parameters of torch's and can be stacked by vmap."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        _check_layer(layer)
        if not layer.bias:
            raise TypeError("a GRU without biases cannot be stacked")
        self.width = layer.hidden_size
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs, (batch, T, width), and the last hidden state.

        Args:
            x: Inputs, (batch, T, size).
            state: Initial hidden state, (1, batch, width), or None for zeros.
        """
        from_input = F.linear(x, self.weight_ih_l0, self.bias_ih_l0).transpose(0, 1)
        hidden = x.new_zeros(x.shape[0], self.width) if state is None else state[0]
        hiddens, _ = _GRUSequence.apply(from_input, self.weight_hh_l0, self.bias_hh_l0, hidden)
        return hiddens.transpose(0, 1), hiddens[-1:]


def make_stackable(model: nn.Module) -> None:
    """Replace torch's recurrent layers by ones that vmap can stack, in place.

    Parameters, their names and their shapes stay the same.
    """
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.LSTM):
                setattr(parent, name, StackableLSTM(layer))
            elif isinstance(layer, nn.GRU):
                setattr(parent, name, StackableGRU(layer))


def _check_layer(layer: nn.RNNBase) -> None:
    """Raise TypeError for layers with more than one direction or level."""
    if layer.num_layers != 1 or layer.bidirectional or not layer.batch_first or layer.proj_size:
        raise TypeError(f"{layer} cannot be stacked: one level, one direction, batch first")
