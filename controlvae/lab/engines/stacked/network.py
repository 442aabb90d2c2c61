"""A stack of convolutional VAEs: the same network as the plain module, for many models at once."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from controlvae.lab.engines.stacked.layers import (
    Dense,
    Down,
    Layer,
    Norm,
    Number,
    Up,
    linear_onto_map_slots,
    linear_slots,
    map_onto_linear_slots,
    number_slot,
    whole_map_slots,
    whole_map_up_slots,
)
from controlvae.lab.engines.stacked.ops import Precision
from controlvae.lab.engines.stacked.parameters import Parameters
from controlvae.lab.models.base import VAE


class StackedVAE:
    """Encoder and decoder of `models` VAEs built like `template`, each with weights of its own."""

    def __init__(self, template: VAE, models: int, precision: str, device: torch.device) -> None:
        arithmetic = Precision(precision)
        self.maps = arithmetic.maps
        self.encoder = _layers("encoder", template.encoder, models, arithmetic)
        self.decoder = _layers("decoder", template.decoder, models, arithmetic)
        self.encoder[0].needs_input_gradient = False
        layers = (*self.encoder, *self.decoder)
        slots = [slot for layer in layers for slot in layer.slots]
        self._pixel = (
            None if template.pixel_log_variance is None else number_slot("pixel_log_variance")
        )
        slots += [self._pixel] if self._pixel else []
        self.parameters = Parameters(slots, models, arithmetic.maps, device)
        for layer in layers:
            layer.to(device)
        self.buffers = {
            name: buffer for layer in layers for name, buffer in layer.buffers().items()
        }
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    def encode(self, x: Tensor) -> Tensor:
        """(models, batch, height, width, channels) -> means beside log-variances, (models, batch, 2 latents)."""
        for layer in self.encoder:
            x = layer(x, self._anchor)
        return x

    def decode(self, z: Tensor) -> Tensor:
        """(models, batch, latents) -> logits, (models, batch, height, width, channels), float32."""
        for layer in self.decoder:
            z = layer(z, self._anchor)
        return z

    def pixel_log_variance(self) -> Tensor | None:
        """(models,) where it is learnt."""
        return None if self._pixel is None else Number.apply(self._anchor, self._pixel)


def _layers(room: str, modules: nn.Sequential, models: int, arithmetic: Precision) -> list[Layer]:
    """The stacked counterparts of a sequence of plain modules."""
    return [_layer(spot, models, arithmetic) for spot in _spots(room, modules)]


class _Spot(NamedTuple):
    """A plain module with weights, and what its neighbours without any make of its input and output."""

    name: str
    module: nn.Module
    flattened: int  # channels of the map that is flattened before it; 0 where it takes a vector, or a map as it is
    onto: (
        tuple[int, int, int] | None
    )  # the map, (channels, height, width), that its output is reshaped to
    rectified_before: bool
    rectified_after: bool
    last: bool


def _spots(room: str, modules: nn.Sequential) -> Iterator[_Spot]:
    plain = [(f"{room}.{key}", module) for key, module in modules.named_children()]
    at = [number for number, (_, module) in enumerate(plain) if not isinstance(module, _WEIGHTLESS)]
    channels, rectified = 0, False  # of what comes in
    for number, following in zip(at, [*at[1:], len(plain)], strict=True):
        name, module = plain[number]
        after = [m for _, m in plain[number + 1 : following]]
        onto = next((m.unflattened_size for m in after if isinstance(m, nn.Unflatten)), None)
        if following < len(plain) and _is_vector_to_map(plain[following][1]):
            onto = None  # a map of one pixel, which is taken as the vector it is
        flattened = channels if number > 0 and isinstance(plain[number - 1][1], nn.Flatten) else 0
        relu = any(isinstance(m, nn.ReLU) for m in after)
        yield _Spot(name, module, flattened, onto, rectified, relu, following == len(plain))  # type: ignore[arg-type]
        channels = getattr(
            module, "out_channels", channels if isinstance(module, nn.BatchNorm2d) else 0
        )
        rectified = relu


def _is_vector_to_map(module: nn.Module) -> bool:
    """Return whether a module is the transposed convolution of one pixel into a map."""
    return isinstance(module, nn.ConvTranspose2d) and module.stride == (1, 1)


_WEIGHTLESS = (nn.ReLU, nn.Flatten, nn.Unflatten)


def _layer(spot: _Spot, models: int, arithmetic: Precision) -> Layer:  # noqa: PLR0911
    """Rectifiers are the layers' own: one before a layer gates the gradient that it sends back."""
    name = spot.name
    how = {"relu": spot.rectified_after, "gate_input": spot.rectified_before, "last": spot.last}
    match spot.module:
        case nn.Linear() as module if spot.onto is not None:
            wide, height, width = spot.onto
            return Dense(
                linear_onto_map_slots(name, module, spot.onto),
                arithmetic,
                (height, width, wide),
                **how,
            )
        case nn.Linear() as module if module.in_features > spot.flattened > 0:
            slots = map_onto_linear_slots(name, module, spot.flattened)
            return Dense(slots, arithmetic, (module.out_features,), **how)
        case nn.Linear() as module:
            return Dense(linear_slots(name, module), arithmetic, (module.out_features,), **how)
        case nn.BatchNorm2d() as module:
            return Norm(name, module, models, arithmetic, **how)
        case nn.Conv2d(stride=(2, 2), kernel_size=(4, 4), padding=(1, 1)) as module:
            return Down(name, module, models, arithmetic, **how)
        case nn.Conv2d(stride=(1, 1), padding=(0, 0)) as module:
            return Dense(whole_map_slots(name, module), arithmetic, (module.out_channels,), **how)
        case nn.ConvTranspose2d(stride=(2, 2), kernel_size=(4, 4), padding=(1, 1)) as module:
            return Up(name, module, models, arithmetic, **how)
        case nn.ConvTranspose2d(stride=(1, 1), padding=(0, 0)) as module:
            size = module.kernel_size[0]
            return Dense(
                whole_map_up_slots(name, module),
                arithmetic,
                (size, size, module.out_channels),
                **how,
            )
    raise TypeError(f"no stacked layer for {spot.module}")
