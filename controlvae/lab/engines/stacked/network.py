"""A stack of convolutional VAEs: the PyTorch network, for many models at once."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from controlvae.lab.engines.stacked import layouts
from controlvae.lab.engines.stacked.layers import (
    Layer,
    ScalarParameter,
    StackedBatchNorm,
    StackedConv,
    StackedConvTranspose,
    StackedLinear,
)
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.engines.stacked.tiling import PrecisionPolicy
from controlvae.lab.models.base import VAE


class StackedVAE:
    """Encoders and decoders of several VAEs, each with its own weights.

    Args:
        template: PyTorch module whose layers every model has.
        models: Number of models.
        precision: `fp32`, `tf32` or `bf16`.
        device: Device of the weights.
    """

    def __init__(self, template: VAE, models: int, precision: str, device: torch.device) -> None:
        policy = PrecisionPolicy(precision)
        self.map_dtype = policy.map_dtype
        self.encoder = _stack_layers("encoder", template.encoder, models, policy)
        self.decoder = _stack_layers("decoder", template.decoder, models, policy)
        self.encoder[0].needs_input_gradient = False
        layers = (*self.encoder, *self.decoder)
        slots = [slot for layer in layers for slot in layer.slots]
        self._pixel_slot = None
        if template.pixel_log_variance is not None:
            self._pixel_slot = layouts.scalar_slot("pixel_log_variance")
            slots.append(self._pixel_slot)
        self.parameters = Parameters(slots, models, policy.map_dtype, device)
        for layer in layers:
            layer.to(device)
        self.buffers = {
            name: buffer for layer in layers for name, buffer in layer.buffers().items()
        }
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    def encode(self, x: Tensor) -> Tensor:
        """Return means and log-variances, (models, batch, 2 · latents).

        `x` is (models, batch, height, width, channels).
        """
        for layer in self.encoder:
            x = layer(x, self._anchor)
        return x

    def decode(self, z: Tensor) -> Tensor:
        """Return logits, (models, batch, height, width, channels), float32.

        `z` is (models, batch, latents).
        """
        for layer in self.decoder:
            z = layer(z, self._anchor)
        return z

    def pixel_log_variance(self) -> Tensor | None:
        """Return the learnt log-variance of a pixel, (models,), or None if it is fixed."""
        if self._pixel_slot is None:
            return None
        return ScalarParameter.apply(self._anchor, self._pixel_slot)


# Modules that are merged into the layer before or after them.
_WITHOUT_WEIGHTS = (nn.ReLU, nn.Flatten, nn.Unflatten)


class _LayerContext(NamedTuple):
    """A module with weights, and what the modules around it do to its input and output."""

    name: str
    module: nn.Module
    # Channels of the map that is flattened before the module; 0 if nothing is flattened.
    flattened_channels: int
    # Map, (channels, height, width), that the output is reshaped to.
    output_map: tuple[int, int, int] | None
    relu_before: bool
    relu_after: bool
    last: bool


def _stack_layers(
    prefix: str, modules: nn.Sequential, models: int, policy: PrecisionPolicy
) -> list[Layer]:
    """Return the stacked counterparts of a sequence of PyTorch modules."""
    return [_stack_layer(context, models, policy) for context in _contexts(prefix, modules)]


def _contexts(prefix: str, modules: nn.Sequential) -> Iterator[_LayerContext]:
    plain = [(f"{prefix}.{key}", module) for key, module in modules.named_children()]
    weighted = [
        n for n, (_, module) in enumerate(plain) if not isinstance(module, _WITHOUT_WEIGHTS)
    ]
    channels, relu_before = 0, False
    for number, following in zip(weighted, [*weighted[1:], len(plain)], strict=True):
        name, module = plain[number]
        after = [m for _, m in plain[number + 1 : following]]
        sizes = (m.unflattened_size for m in after if isinstance(m, nn.Unflatten))
        output_map: tuple[int, int, int] | None = next(sizes, None)  # type: ignore[assignment]
        if following < len(plain) and _is_vector_to_map(plain[following][1]):
            output_map = None  # a map of one pixel, used as the vector it is
        flattened = number > 0 and isinstance(plain[number - 1][1], nn.Flatten)
        relu_after = any(isinstance(m, nn.ReLU) for m in after)
        last = following == len(plain)
        yield _LayerContext(
            name, module, channels if flattened else 0, output_map, relu_before, relu_after, last
        )
        unchanged = channels if isinstance(module, nn.BatchNorm2d) else 0
        channels = getattr(module, "out_channels", unchanged)
        relu_before = relu_after


def _is_vector_to_map(module: nn.Module) -> bool:
    """Return True if a module is the transposed convolution of one pixel into a map."""
    return isinstance(module, nn.ConvTranspose2d) and module.stride == (1, 1)


def _stack_layer(context: _LayerContext, models: int, policy: PrecisionPolicy) -> Layer:
    """Return the stacked counterpart of one module, ReLUs included."""
    name = context.name
    options = {
        "relu": context.relu_after,
        "gate_input": context.relu_before,
        "last": context.last,
    }
    match context.module:
        case nn.BatchNorm2d() as module:
            return StackedBatchNorm(name, module, models, policy, **options)
        case nn.Conv2d(stride=(2, 2), kernel_size=(4, 4), padding=(1, 1)) as module:
            return StackedConv(name, module, models, policy, **options)
        case nn.ConvTranspose2d(stride=(2, 2), kernel_size=(4, 4), padding=(1, 1)) as module:
            return StackedConvTranspose(name, module, models, policy, **options)
    slots, shape = _linear_layout(context)
    return StackedLinear(slots, policy, shape, **options)


def _linear_layout(context: _LayerContext) -> tuple[list[layouts.Slot], tuple[int, ...]]:
    """Return the slots and the output shape of a module that is a matrix product."""
    name = context.name
    match context.module:
        case nn.Linear() as module if context.output_map is not None:
            channels, height, width = context.output_map
            slots = layouts.linear_to_map_slots(name, module, context.output_map)
            return slots, (height, width, channels)
        case nn.Linear() as module if module.in_features > context.flattened_channels > 0:
            slots = layouts.map_to_linear_slots(name, module, context.flattened_channels)
            return slots, (module.out_features,)
        case nn.Linear() as module:
            return layouts.linear_slots(name, module), (module.out_features,)
        case nn.Conv2d(stride=(1, 1), padding=(0, 0)) as module:
            return layouts.full_map_conv_slots(name, module), (module.out_channels,)
        case nn.ConvTranspose2d(stride=(1, 1), padding=(0, 0)) as module:
            size = module.kernel_size[0]
            slots = layouts.full_map_conv_transpose_slots(name, module)
            return slots, (size, size, module.out_channels)
    raise TypeError(f"the stacked engine has no layer for {context.module}; use the eager engine")
