"""Layers of a stack of models, with hand-written gradients.

Activations are stored after the ReLU. A gradient is passed on already gated by the activation it
belongs to: the layer that receives a rectified activation gates the gradient it sends back, inside
the kernel that computes it. So no ReLU needs a separate pass over memory.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from controlvae.lab.engines.stacked import ops, tiling
from controlvae.lab.engines.stacked.layouts import channel_slot, conv_slots
from controlvae.lab.engines.stacked.parameters import Slot
from controlvae.lab.engines.stacked.tiling import PrecisionPolicy

# A sum of at least this many products is worth a split-K matmul if its result is small.
_SPLIT_K_LENGTH = 2048


class Layer(ABC):
    """Base class of a layer: forward and backward for all models of a stack.

    Args:
        policy: Data types of maps and products.
        relu: The layer is followed by a ReLU.
        gate_input: The input is the output of a ReLU, so its gradient is gated.
        last: The layer is the last of its network. Its output enters the latents or the loss and
            stays in float32.
    """

    slots: list[Slot]
    # Tensors that the last forward pass saved for its backward pass, besides the input.
    saved: tuple[Tensor, ...] = ()

    def __init__(
        self, policy: PrecisionPolicy, *, relu: bool, gate_input: bool, last: bool = False
    ) -> None:
        self.policy = policy
        self.relu = relu
        self.gate_input = gate_input
        self.dtype = torch.float32 if last else policy.map_dtype
        self.needs_input_gradient = True

    def buffers(self) -> dict[str, Tensor]:
        """Return state without a gradient, (models, ...), by its PyTorch state-dict name."""
        return {}

    def to(self, device: torch.device) -> None:  # noqa: B027
        """Move the buffers to a device. `Parameters` places the slots."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the output, rectified if a ReLU follows this layer."""

    @abstractmethod
    def backward(self, x: Tensor, dy: Tensor, *saved: Tensor) -> Tensor | None:
        """Write the parameter gradients into their slots and return the input gradient.

        Args:
            x: Input of the forward pass.
            dy: Gradient of the output, already gated by its ReLU.
            saved: Tensors saved by the forward pass.

        Returns:
            The gated gradient of the input, or None if `needs_input_gradient` is False.
        """

    def __call__(self, x: Tensor, anchor: Tensor) -> Tensor:
        """Apply the layer under autograd."""
        return _Apply.apply(x, anchor, self)

    def _gate(self, x: Tensor) -> Tensor | None:
        return x if self.gate_input else None


class _Apply(torch.autograd.Function):
    """Connects a layer to autograd.

    The weights are not autograd leaves, so `anchor` marks the output as requiring a gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        out = layer.forward(x)
        ctx.save_for_backward(x, *layer.saved)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        x, *saved = ctx.saved_tensors
        return ctx.layer.backward(x, gradients[0].contiguous(), *saved), None, None


class StackedConv(Layer):
    """Convolution 4x4, stride 2, padding 1."""

    def __init__(
        self, name: str, module: nn.Conv2d, models: int, policy: PrecisionPolicy, **options: bool
    ) -> None:
        super().__init__(policy, **options)
        large, small = module.in_channels, module.out_channels
        splits = tiling.weight_grad_splits(large, small, models, policy)
        bias = channel_slot(f"{name}.bias", small, splits)
        self.slots = conv_slots(name, large, small, splits, bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.slots
        return ops.conv(x, weight.operand, self.policy, bias=bias.weight, relu=self.relu)

    def backward(self, x: Tensor, dy: Tensor, *saved: Tensor) -> Tensor | None:
        weight, bias = self.slots
        ops.conv_weight_grad(x, dy, weight.gradient, bias.gradient, self.policy, large_bias=False)
        if not self.needs_input_gradient:
            return None
        return ops.conv_transpose(dy, weight.operand, self.policy, gate=self._gate(x))


class StackedConvTranspose(Layer):
    """Transposed convolution 4x4, stride 2, padding 1."""

    def __init__(
        self,
        name: str,
        module: nn.ConvTranspose2d,
        models: int,
        policy: PrecisionPolicy,
        **options: bool,
    ) -> None:
        super().__init__(policy, **options)
        large, small = module.out_channels, module.in_channels
        splits = tiling.weight_grad_splits(large, small, models, policy)
        bias = channel_slot(f"{name}.bias", large, tiling.large_bias_splits(large, splits))
        self.slots = conv_slots(name, large, small, splits, bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.slots
        return ops.conv_transpose(
            x, weight.operand, self.policy, bias=bias.weight, relu=self.relu, dtype=self.dtype
        )

    def backward(self, x: Tensor, dy: Tensor, *saved: Tensor) -> Tensor:
        weight, bias = self.slots
        ops.conv_weight_grad(dy, x, weight.gradient, bias.gradient, self.policy, large_bias=True)
        return ops.conv(dy, weight.operand, self.policy, gate=self._gate(x))


class StackedLinear(Layer):
    """Linear layer, or a convolution whose kernel covers its whole map, flattened.

    Args:
        slots: Weight, (in, out), and bias.
        policy: Data types of maps and products.
        shape: Shape of the output of one example.
        options: Keyword arguments of `Layer`.
    """

    def __init__(
        self, slots: list[Slot], policy: PrecisionPolicy, shape: tuple[int, ...], **options: bool
    ) -> None:
        super().__init__(policy, **options)
        self.slots = slots
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.slots[0].operand, self.slots[1].weight
        flat = x.flatten(2)
        if flat.shape[2] >= _SPLIT_K_LENGTH and not self.relu:
            product = ops.split_k_matmul(flat, weight, self.policy)
            return (product + bias.unsqueeze(1)).to(self.dtype)
        out = torch.empty(*flat.shape[:2], weight.shape[2], dtype=self.dtype, device=x.device)
        ops.matmul(flat, weight, out, self.policy, bias=bias, relu=self.relu)
        return out.unflatten(2, self.shape)

    def backward(self, x: Tensor, dy: Tensor, *saved: Tensor) -> Tensor:
        weight, bias = self.slots
        flat, dy = x.flatten(2), dy.flatten(2)
        ops.matmul(
            flat.transpose(1, 2),
            dy,
            weight.gradient[:, 0],
            self.policy,
            column_sum=bias.gradient.flatten(1),
        )
        transposed = weight.operand.transpose(1, 2)
        if dy.shape[2] >= _SPLIT_K_LENGTH and not self.gate_input:
            return ops.split_k_matmul(dy, transposed, self.policy).view_as(x).to(x.dtype)
        dx = torch.empty_like(flat)
        ops.matmul(dy, transposed, dx, self.policy, gate=self._gate(flat))
        return dx.view_as(x)


class StackedBatchNorm(Layer):
    """Batch norm over all pixels of each model's batch."""

    def __init__(
        self,
        name: str,
        module: nn.BatchNorm2d,
        models: int,
        policy: PrecisionPolicy,
        **options: bool,
    ) -> None:
        super().__init__(policy, **options)
        self.splits = tiling.batch_norm_splits(models)
        self.slots = [
            channel_slot(f"{name}.{parameter}", module.num_features, self.splits)
            for parameter in ("weight", "bias")
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
        self.running_mean = self.running_mean.to(device)
        self.running_variance = self.running_variance.to(device)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (slot.weight for slot in self.slots)
        statistics = ops.batch_statistics(
            x, self.splits, self.running_mean, self.running_variance, self.epsilon, self.momentum
        )
        self.saved = (statistics,)
        return ops.normalise(x, statistics, weight, bias, relu=self.relu)

    def backward(self, x: Tensor, dy: Tensor, *saved: Tensor) -> Tensor:
        (statistics,), (weight, bias) = saved, self.slots
        return ops.normalise_backward(
            x, dy, statistics, weight.weight, weight.gradient, bias.gradient
        )


class ScalarParameter(torch.autograd.Function):
    """Reads one number per model, (models,), from its slot and writes its gradient back there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, slot: Slot) -> Tensor:
        ctx.slot = slot
        return slot.weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.slot.gradient[:, 0].copy_(gradients[0])
        return None, None
