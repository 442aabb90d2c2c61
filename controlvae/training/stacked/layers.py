"""The layers of a stack of models, with their gradients written by hand.

Between layers an activation travels rectified and a gradient travels already gated by the activation it belongs to:
the layer that receives an activation gates the gradient it sends back, inside the kernel that computes it.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from controlvae.training.stacked import products
from controlvae.training.stacked.parameters import Slot
from controlvae.training.stacked.products import Arithmetic


class Layer(ABC):
    """A map from activations to activations, and what it leaves for the optimiser on the way back."""

    slots: list[Slot]

    def __init__(self, arithmetic: Arithmetic, *, relu: bool, gate_input: bool) -> None:
        self.arithmetic = arithmetic
        self.relu = relu
        self.gate_input = gate_input  # the input is a rectified activation
        self.needs_input_gradient = True

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The output, rectified if this layer is followed by a rectifier."""

    @abstractmethod
    def backward(self, x: Tensor, dy: Tensor) -> Tensor | None:
        """Writes the weights' gradients into their slots; returns the input's, gated, or None where nobody needs it."""

    def __call__(self, x: Tensor, anchor: Tensor) -> Tensor:
        return _Apply.apply(x, anchor, self)

    def _gate(self, x: Tensor) -> Tensor | None:
        return x if self.gate_input else None


class _Apply(torch.autograd.Function):
    """Ties a layer into autograd. The weights are no autograd leaves, so an anchor marks the output as needing one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors
        return ctx.layer.backward(x, gradients[0].contiguous()), None, None


class Down(Layer):
    """Convolution 4x4, stride 2, padding 1."""

    def __init__(self, name: str, module: nn.Conv2d, models: int, arithmetic: Arithmetic, **how: bool) -> None:
        super().__init__(arithmetic, **how)
        self.slots = _map_slots(name, module.in_channels, module.out_channels, module.out_channels, models, 1)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (slot.weight for slot in self.slots)
        return products.gather(x, weight, self.arithmetic, bias=bias, relu=self.relu)

    def backward(self, x: Tensor, dy: Tensor) -> Tensor | None:
        weight, bias = self.slots
        products.outer(x, dy, weight.gradient, bias.gradient, self.arithmetic, large_bias=False)
        if not self.needs_input_gradient:
            return None
        return products.spread(dy, weight.weight, self.arithmetic, gate=self._gate(x))


class Up(Layer):
    """Transposed convolution 4x4, stride 2, padding 1."""

    def __init__(self, name: str, module: nn.ConvTranspose2d, models: int, arithmetic: Arithmetic, **how: bool) -> None:
        super().__init__(arithmetic, **how)
        # The bias belongs to the large map, whose sum comes in quarters: see `_outer_kernel`.
        self.slots = _map_slots(name, module.out_channels, module.in_channels, module.out_channels, models, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (slot.weight for slot in self.slots)
        # The last layer gives logits, which stay in float32.
        dtype = None if self.relu else torch.float32
        return products.spread(x, weight, self.arithmetic, bias=bias, relu=self.relu, dtype=dtype)

    def backward(self, x: Tensor, dy: Tensor) -> Tensor:
        weight, bias = self.slots
        products.outer(dy, x, weight.gradient, bias.gradient, self.arithmetic, large_bias=True)
        return products.gather(dy, weight.weight, self.arithmetic, gate=self._gate(x))


class Dense(Layer):
    """A linear layer over the last dimension, or a convolution whose kernel covers its whole map, laid out flat."""

    def __init__(self, slots: list[Slot], arithmetic: Arithmetic, shape: tuple[int, ...], **how: bool) -> None:
        super().__init__(arithmetic, **how)
        self.slots = slots
        self.shape = shape  # of one example's output

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (slot.weight for slot in self.slots)
        flat = x.flatten(2)
        # What goes into the latents stays in float32.
        dtype = self.arithmetic.maps if self.relu else torch.float32
        out = torch.empty(*flat.shape[:2], weight.shape[2], dtype=dtype, device=x.device)
        products.matmul(flat, weight, out, self.arithmetic, bias=bias, relu=self.relu)
        return out.unflatten(2, self.shape)

    def backward(self, x: Tensor, dy: Tensor) -> Tensor:
        weight, bias = self.slots
        flat, dy = x.flatten(2), dy.flatten(2)
        products.matmul(
            flat.transpose(1, 2), dy, weight.gradient[:, 0], self.arithmetic, column_sum=bias.gradient.flatten(1)
        )
        dx = torch.empty_like(flat)
        products.matmul(dy, weight.weight.transpose(1, 2), dx, self.arithmetic, gate=self._gate(flat))
        return dx.view_as(x)


def _map_slots(name: str, large: int, small: int, biases: int, models: int, bias_parts: int) -> list[Slot]:
    """Weight and bias of a stride-2 layer. Torch has (small, large, 4, 4), ours is (4, 4, large, small)."""
    parts = _parts(large, small, models)
    return [
        Slot(f"{name}.weight", (4, 4, large, small), parts,
             lambda plain: plain.permute(2, 3, 1, 0), lambda stacked: stacked.permute(3, 2, 0, 1)),
        Slot(f"{name}.bias", (biases,), parts * bias_parts, _same, _same),
    ]  # fmt: skip


def _parts(large: int, small: int, models: int) -> int:
    """Into how many parts a weight gradient's sum over pixels is split: enough to fill a large card, measured.

    Every part is read again by the optimiser, so wide layers and tall stacks get few.
    """
    if 16 * large <= 64:
        return 128 if models <= 8 else 64
    if large * small <= 1024:
        return max(8, min(32, 80 // models))
    return max(4, min(16 if large * small > 2048 else 32, 40 // models))


def linear_slots(name: str, module: nn.Linear) -> list[Slot]:
    return [
        Slot(f"{name}.weight", (module.in_features, module.out_features), 1, _transposed, _transposed),
        Slot(f"{name}.bias", (module.out_features,), 1, _same, _same),
    ]


def linear_onto_map_slots(name: str, module: nn.Linear, shape: tuple[int, int, int]) -> list[Slot]:
    """A linear layer whose output is a map: (channels, height, width) in torch, (height, width, channels) here."""
    channels, height, width = shape
    inner = module.in_features
    return [
        Slot(f"{name}.weight", (inner, height * width * channels), 1,
             lambda plain: plain.t().unflatten(1, shape).permute(0, 2, 3, 1).reshape(inner, -1),
             lambda stacked: stacked.view(inner, height, width, channels).permute(3, 1, 2, 0).reshape(-1, inner)),
        Slot(f"{name}.bias", (height * width * channels,), 1,
             lambda plain: plain.view(shape).permute(1, 2, 0).reshape(-1),
             lambda stacked: stacked.view(height, width, channels).permute(2, 0, 1).reshape(-1)),
    ]  # fmt: skip


def whole_map_slots(name: str, module: nn.Conv2d) -> list[Slot]:
    """A convolution that covers its whole map: (out, in, size, size) is a matrix over (size, size, in)."""
    inner, outer, size = module.in_channels, module.out_channels, module.kernel_size[0]
    return [
        Slot(f"{name}.weight", (size * size * inner, outer), 1,
             lambda plain: plain.permute(2, 3, 1, 0).reshape(-1, outer),
             lambda stacked: stacked.view(size, size, inner, outer).permute(3, 2, 0, 1)),
        Slot(f"{name}.bias", (outer,), 1, _same, _same),
    ]  # fmt: skip


def whole_map_up_slots(name: str, module: nn.ConvTranspose2d) -> list[Slot]:
    """A transposed convolution from a single pixel: (in, out, size, size) is a matrix onto (size, size, out).

    Its bias serves every pixel, so the sum over a column of the matrix comes in size x size parts.
    """
    inner, outer, size = module.in_channels, module.out_channels, module.kernel_size[0]
    return [
        Slot(f"{name}.weight", (inner, size * size * outer), 1,
             lambda plain: plain.permute(0, 2, 3, 1).reshape(inner, -1),
             lambda stacked: stacked.view(inner, size, size, outer).permute(0, 3, 1, 2)),
        Slot(f"{name}.bias", (outer,), size * size, _same, _same),
    ]  # fmt: skip


def _same(value: Tensor) -> Tensor:
    return value


def _transposed(value: Tensor) -> Tensor:
    return value.t()
