"""Convolutional VAE of the paper's appendix."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from controlvae.lab.models.base import VAE, final_map_size, initialise


class ConvVAE(VAE):
    """Stride-2 4x4 convolutions down to a small map, a hidden layer, the latents, and back.

    For 64x64 images with the default widths this is the network of the paper's Table 10 as its
    released code builds it (763,285 parameters). The printed "FC 256, FC 2x10" is a 4x4
    convolution to 256 channels and one linear layer.

    Args:
        shape: Image shape, (channels, height, width). Square, with sides divisible by 2 to the
            number of `channels`.
        latents: Size of z.
        channels: Widths of the stride-2 layers. One convolution over the remaining map gives the
            `hidden` layer.
        hidden: Width of the hidden layer.
        dense: Widths of further hidden layers before the latents. With any, the decoder enters its
            map through a linear layer: `channels=(32, 32, 32, 32), dense=(256,)` is the network
            of Burgess et al. (502,005 parameters).
        initial: Initialisation of convolutions and linear layers: scaled to their width, or
            N(0, 0.02) regardless of it.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 64, 64),
        latents: int = 10,
        channels: tuple[int, ...] = (32, 32, 64, 64),
        hidden: int = 256,
        dense: tuple[int, ...] = (),
        initial: Literal["kaiming", "normal"] = "kaiming",
    ) -> None:
        super().__init__()
        size = final_map_size(shape, len(channels))
        widths = (hidden, *dense)
        self.latents = latents
        convolutions: list[nn.Module] = []
        for width_in, width_out in zip((shape[0], *channels[:-1]), channels, strict=True):
            convolutions += [nn.Conv2d(width_in, width_out, 4, stride=2, padding=1), nn.ReLU()]
        self.encoder = nn.Sequential(
            *convolutions,
            nn.Conv2d(channels[-1], hidden, size),
            nn.ReLU(),
            nn.Flatten(),
            *_linear_layers(widths),
            nn.Linear(widths[-1], 2 * latents),
        )
        # The order in which layers are created decides their initial weights. It must not change.
        upsampling: list[nn.Module] = []
        for width_in, width_out in zip(channels[:0:-1], channels[-2::-1], strict=True):
            upsampling += [
                nn.ConvTranspose2d(width_in, width_out, 4, stride=2, padding=1),
                nn.ReLU(),
            ]
        upsampling += [nn.ConvTranspose2d(channels[0], shape[0], 4, stride=2, padding=1)]
        entry = [nn.Linear(latents, widths[-1]), nn.ReLU(), *_linear_layers(widths[::-1])]
        if dense:
            entry += [
                nn.Linear(hidden, channels[-1] * size * size),
                nn.Unflatten(1, (channels[-1], size, size)),
            ]
        else:
            entry += [
                nn.Unflatten(1, (hidden, 1, 1)),
                nn.ConvTranspose2d(hidden, channels[-1], size),
            ]
        self.decoder = nn.Sequential(*entry, nn.ReLU(), *upsampling)
        initialise(self, initial)


def _linear_layers(widths: Sequence[int]) -> list[nn.Module]:
    """Return linear layers between consecutive widths, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return layers
