"""A stack of convolutional VAEs: the same network as the plain module, for many models at once."""

import torch
from torch import Tensor, nn

from controlvae.models import ConvVAE
from controlvae.training.stacked.layers import (
    Dense,
    Down,
    Layer,
    Up,
    linear_onto_map_slots,
    linear_slots,
    whole_map_slots,
    whole_map_up_slots,
)
from controlvae.training.stacked.parameters import Parameters
from controlvae.training.stacked.products import Arithmetic


class StackedVAE:
    """Encoder and decoder of `models` VAEs built like `template`, each with weights of its own."""

    def __init__(self, template: ConvVAE, models: int, precision: str, device: torch.device) -> None:
        arithmetic = Arithmetic(precision)
        self.latents = template.latents
        self.maps = arithmetic.maps
        self.encoder = _layers("encoder", template.encoder, models, arithmetic, rectified=False)
        self.decoder = _layers("decoder", template.decoder, models, arithmetic, rectified=False)
        self.encoder[0].needs_input_gradient = False
        slots = [slot for layer in (*self.encoder, *self.decoder) for slot in layer.slots]
        self.parameters = Parameters(slots, models, device)
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


def _layers(room: str, modules: nn.Module, models: int, arithmetic: Arithmetic, rectified: bool) -> list[Layer]:
    """The stacked counterparts of a sequence of plain modules."""
    plain = list(modules.named_children())
    layers: list[Layer] = []
    for number, (key, module) in enumerate(plain):
        if isinstance(module, nn.ReLU | nn.Flatten | nn.Unflatten):
            continue
        after = [m for _, m in plain[number + 1 :]]
        nearest = next((m for m in after if not isinstance(m, nn.Flatten | nn.Unflatten)), None)
        how = {"relu": isinstance(nearest, nn.ReLU), "gate_input": rectified}
        name = f"{room}.{key}"
        match module, after[:1]:
            case nn.Linear(), [nn.Unflatten(unflattened_size=(channels, height, width))] if height > 1:
                slots = linear_onto_map_slots(name, module, (channels, height, width))
                layers.append(Dense(slots, arithmetic, (height, width, channels), **how))
            case _:
                layers.append(_layer(name, module, models, arithmetic, how))
        rectified = how["relu"]
    return layers


def _layer(name: str, module: nn.Module, models: int, arithmetic: Arithmetic, how: dict[str, bool]) -> Layer:
    match module:
        case nn.Linear():
            return Dense(linear_slots(name, module), arithmetic, (module.out_features,), **how)
        case nn.Conv2d(stride=(2, 2), kernel_size=(4, 4), padding=(1, 1)):
            return Down(name, module, models, arithmetic, **how)
        case nn.Conv2d(stride=(1, 1), padding=(0, 0)):
            return Dense(whole_map_slots(name, module), arithmetic, (module.out_channels,), **how)
        case nn.ConvTranspose2d(stride=(2, 2), kernel_size=(4, 4), padding=(1, 1)):
            return Up(name, module, models, arithmetic, **how)
        case nn.ConvTranspose2d(stride=(1, 1), padding=(0, 0)):
            size = module.kernel_size[0]
            slots = whole_map_up_slots(name, module)
            return Dense(slots, arithmetic, (size, size, module.out_channels), **how)
    raise TypeError(f"no stacked layer for {module}")
