"""The layers of a stack of models, with their gradients written by hand.

Between layers an activation travels rectified and a gradient travels already gated by the activation it belongs to:
the layer that receives an activation gates the gradient it sends back, inside the kernel that computes it.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.lab.engines.stacked import ops as products
from controlvae.lab.engines.stacked.ops import Precision
from controlvae.lab.engines.stacked.parameters import Slot

_LONG = 2048  # a sum over more than so many products is worth splitting where its result is small


class Layer(ABC):
    """A map from activations to activations, and what it leaves for the optimiser on the way back."""

    slots: list[Slot]
    remembered: tuple[
        Tensor, ...
    ] = ()  # by the last forward pass for its backward pass, beside the input

    def __init__(
        self, arithmetic: Precision, *, relu: bool, gate_input: bool, last: bool = False
    ) -> None:
        self.arithmetic = arithmetic
        self.relu = relu
        self.gate_input = gate_input  # the input is a rectified activation
        self.dtype = (
            torch.float32 if last else arithmetic.maps
        )  # what enters the latents or the loss stays in float32
        self.needs_input_gradient = True

    def buffers(self) -> dict[str, Tensor]:
        """What moves without a gradient, by its name in the plain module's state dict: (models, ...) each."""
        return {}

    def to(self, device: torch.device) -> None:  # noqa: B027
        """Moves the buffers, where there are any; the slots are placed by `Parameters`."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The output, rectified if this layer is followed by a rectifier."""

    @abstractmethod
    def backward(self, x: Tensor, dy: Tensor, *remembered: Tensor) -> Tensor | None:
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
        out = layer.forward(x)
        ctx.save_for_backward(x, *layer.remembered)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        x, *remembered = ctx.saved_tensors
        return ctx.layer.backward(x, gradients[0].contiguous(), *remembered), None, None


class Down(Layer):
    """Convolution 4x4, stride 2, padding 1."""

    def __init__(
        self, name: str, module: nn.Conv2d, models: int, arithmetic: Precision, **how: bool
    ) -> None:
        super().__init__(arithmetic, **how)
        large, small = module.in_channels, module.out_channels
        parts = products.parts(large, small, models, arithmetic)
        self.slots = _map_slots(
            name, large, small, parts, Slot(f"{name}.bias", (small,), parts, _same, _same)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.slots
        return products.gather(x, weight.operand, self.arithmetic, bias=bias.weight, relu=self.relu)

    def backward(self, x: Tensor, dy: Tensor, *remembered: Tensor) -> Tensor | None:
        weight, bias = self.slots
        products.outer(x, dy, weight.gradient, bias.gradient, self.arithmetic, large_bias=False)
        if not self.needs_input_gradient:
            return None
        return products.spread(dy, weight.operand, self.arithmetic, gate=self._gate(x))


class Up(Layer):
    """Transposed convolution 4x4, stride 2, padding 1."""

    def __init__(
        self,
        name: str,
        module: nn.ConvTranspose2d,
        models: int,
        arithmetic: Precision,
        **how: bool,
    ) -> None:
        super().__init__(arithmetic, **how)
        large, small = module.out_channels, module.in_channels
        parts = products.parts(large, small, models, arithmetic)
        bias = Slot(f"{name}.bias", (large,), products.large_bias_parts(large, parts), _same, _same)
        self.slots = _map_slots(name, large, small, parts, bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.slots
        return products.spread(
            x, weight.operand, self.arithmetic, bias=bias.weight, relu=self.relu, dtype=self.dtype
        )

    def backward(self, x: Tensor, dy: Tensor, *remembered: Tensor) -> Tensor:
        weight, bias = self.slots
        products.outer(dy, x, weight.gradient, bias.gradient, self.arithmetic, large_bias=True)
        return products.gather(dy, weight.operand, self.arithmetic, gate=self._gate(x))


class Dense(Layer):
    """A linear layer over the last dimension, or a convolution whose kernel covers its whole map, laid out flat."""

    def __init__(
        self, slots: list[Slot], arithmetic: Precision, shape: tuple[int, ...], **how: bool
    ) -> None:
        super().__init__(arithmetic, **how)
        self.slots = slots
        self.shape = shape  # of one example's output

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.slots[0].operand, self.slots[1].weight
        flat = x.flatten(2)
        if flat.shape[2] >= _LONG and not self.relu:
            return (products.long_matmul(flat, weight, self.arithmetic) + bias.unsqueeze(1)).to(
                self.dtype
            )
        out = torch.empty(*flat.shape[:2], weight.shape[2], dtype=self.dtype, device=x.device)
        products.matmul(flat, weight, out, self.arithmetic, bias=bias, relu=self.relu)
        return out.unflatten(2, self.shape)

    def backward(self, x: Tensor, dy: Tensor, *remembered: Tensor) -> Tensor:
        weight, bias = self.slots
        flat, dy = x.flatten(2), dy.flatten(2)
        products.matmul(
            flat.transpose(1, 2),
            dy,
            weight.gradient[:, 0],
            self.arithmetic,
            column_sum=bias.gradient.flatten(1),
        )
        if dy.shape[2] >= _LONG and not self.gate_input:
            return (
                products.long_matmul(dy, weight.operand.transpose(1, 2), self.arithmetic)
                .view_as(x)
                .to(x.dtype)
            )
        dx = torch.empty_like(flat)
        products.matmul(
            dy, weight.operand.transpose(1, 2), dx, self.arithmetic, gate=self._gate(flat)
        )
        return dx.view_as(x)


class Norm(Layer):
    """Batch norm over every pixel of a model's own batch."""

    def __init__(
        self, name: str, module: nn.BatchNorm2d, models: int, arithmetic: Precision, **how: bool
    ) -> None:
        super().__init__(arithmetic, **how)
        self.parts = _norm_parts(models)
        self.slots = [
            Slot(f"{name}.{part}", (module.num_features,), self.parts, _same, _same)
            for part in ("weight", "bias")
        ]
        self.epsilon, self.momentum, self.name = module.eps, module.momentum or 0.0, name
        assert module.running_mean is not None
        assert module.running_var is not None
        self.running_mean = module.running_mean.repeat(models, 1)
        self.running_variance = module.running_var.repeat(models, 1)

    def buffers(self) -> dict[str, Tensor]:
        return {
            f"{self.name}.running_mean": self.running_mean,
            f"{self.name}.running_var": self.running_variance,
        }

    def to(self, device: torch.device) -> None:
        self.running_mean, self.running_variance = (
            self.running_mean.to(device),
            self.running_variance.to(device),
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (slot.weight for slot in self.slots)
        statistics = products.batch_statistics(
            x, self.parts, self.running_mean, self.running_variance, self.epsilon, self.momentum
        )
        self.remembered = (statistics,)
        return products.normalise(x, statistics, weight, bias, relu=self.relu)

    def backward(self, x: Tensor, dy: Tensor, *remembered: Tensor) -> Tensor:
        (statistics,), (weight, bias) = remembered, self.slots
        return products.normalise_gradient(
            x, dy, statistics, weight.weight, weight.gradient, bias.gradient
        )


class Number(torch.autograd.Function):
    """One number of each model, (models,), from its slot; the gradient goes back there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, slot: Slot) -> Tensor:
        ctx.slot = slot
        return slot.weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.slot.gradient[:, 0].copy_(gradients[0])
        return None, None


def number_slot(name: str) -> Slot:
    return Slot(name, (), 1, _same, _same)


def _map_slots(name: str, large: int, small: int, parts: int, bias: Slot) -> list[Slot]:
    """Weight and bias of a stride-2 layer. Torch has (small, large, 4, 4), ours is (4, 4, large, small)."""
    weight = Slot(
        f"{name}.weight",
        (4, 4, large, small),
        parts,
        lambda plain: plain.permute(2, 3, 1, 0),
        lambda stacked: stacked.permute(3, 2, 0, 1),
    )
    return [weight, bias]


def _norm_parts(models: int) -> int:
    """Into how many parts a batch norm's sums over pixels are split."""
    return max(16, 512 // models)


def linear_slots(name: str, module: nn.Linear) -> list[Slot]:
    return [
        Slot(
            f"{name}.weight", (module.in_features, module.out_features), 1, _transposed, _transposed
        ),
        Slot(f"{name}.bias", (module.out_features,), 1, _same, _same),
    ]


def padded_slots(name: str, module: nn.Linear, inner: int, outer: int) -> list[Slot]:
    """A linear layer with zeros up to `inner` inputs and `outer` outputs; their gradients are zero, so they stay."""
    rows, columns = module.in_features, module.out_features
    return [
        Slot(
            f"{name}.weight",
            (inner, outer),
            1,
            lambda plain: F.pad(plain.t(), (0, outer - columns, 0, inner - rows)),
            lambda stacked: stacked[:rows, :columns].t(),
        ),
        Slot(
            f"{name}.bias",
            (outer,),
            1,
            lambda plain: F.pad(plain, (0, outer - columns)),
            lambda stacked: stacked[:columns],
        ),
    ]


def linear_onto_map_slots(name: str, module: nn.Linear, shape: tuple[int, int, int]) -> list[Slot]:
    """A linear layer whose output is a map: (channels, height, width) in torch, (height, width, channels) here."""
    channels, height, width = shape
    inner = module.in_features
    return [
        Slot(
            f"{name}.weight",
            (inner, height * width * channels),
            1,
            lambda plain: plain.t().unflatten(1, shape).permute(0, 2, 3, 1).reshape(inner, -1),
            lambda stacked: (
                stacked.view(inner, height, width, channels).permute(3, 1, 2, 0).reshape(-1, inner)
            ),
        ),
        Slot(
            f"{name}.bias",
            (height * width * channels,),
            1,
            lambda plain: plain.view(shape).permute(1, 2, 0).reshape(-1),
            lambda stacked: stacked.view(height, width, channels).permute(2, 0, 1).reshape(-1),
        ),
    ]


def map_onto_linear_slots(name: str, module: nn.Linear, channels: int) -> list[Slot]:
    """A linear layer whose input is a flattened map: (channels, pixels) in torch, (pixels, channels) here."""
    outer = module.out_features
    return [
        Slot(
            f"{name}.weight",
            (module.in_features, outer),
            1,
            lambda plain: plain.t().unflatten(0, (channels, -1)).transpose(0, 1).reshape(-1, outer),
            lambda stacked: (
                stacked.view(-1, channels, outer).transpose(0, 1).reshape(-1, outer).t()
            ),
        ),
        Slot(f"{name}.bias", (outer,), 1, _same, _same),
    ]


def whole_map_slots(name: str, module: nn.Conv2d) -> list[Slot]:
    """A convolution that covers its whole map: (out, in, size, size) is a matrix over (size, size, in)."""
    inner, outer, size = module.in_channels, module.out_channels, module.kernel_size[0]
    return [
        Slot(
            f"{name}.weight",
            (size * size * inner, outer),
            1,
            lambda plain: plain.permute(2, 3, 1, 0).reshape(-1, outer),
            lambda stacked: stacked.view(size, size, inner, outer).permute(3, 2, 0, 1),
        ),
        Slot(f"{name}.bias", (outer,), 1, _same, _same),
    ]


def whole_map_up_slots(name: str, module: nn.ConvTranspose2d) -> list[Slot]:
    """A transposed convolution from a single pixel: (in, out, size, size) is a matrix onto (size, size, out).

    Its bias serves every pixel, so the sum over a column of the matrix comes in size x size parts.
    """
    inner, outer, size = module.in_channels, module.out_channels, module.kernel_size[0]
    return [
        Slot(
            f"{name}.weight",
            (inner, size * size * outer),
            1,
            lambda plain: plain.permute(0, 2, 3, 1).reshape(inner, -1),
            lambda stacked: stacked.view(inner, size, size, outer).permute(0, 3, 1, 2),
        ),
        Slot(f"{name}.bias", (outer,), size * size, _same, _same),
    ]


def _same(value: Tensor) -> Tensor:
    return value


def _transposed(value: Tensor) -> Tensor:
    return value.t()
