"""The convolutional VAE of the paper's appendix, as a plain module."""

from typing import Literal

from torch import nn

from controlvae.lab.models.base import VAE, initialise, small_map
from controlvae.lab.models.layers import MapToVector, OutputUp, Up, VectorToMap


class ConvVAE(VAE):
    """Stride-2 4x4 convolutions down to a small map, one hidden layer to the latents, and the mirror image back.

    For 64x64 pictures with the default widths this is the network of the paper's Table 10 as its released code builds
    it (763,285 parameters): the printed "FC 256, FC 2x10" is a 4x4 convolution to 256 and one linear layer.

    Args:
        shape: of a picture, (channels, height, width); square, divisible by 2 to the number of `channels`.
        latents: size of z.
        channels: widths of the stride-2 layers; the map left after them is convolved whole into `hidden`.
        hidden: width of the hidden layer.
        dense: widths of further hidden layers before the latents. With any, the decoder enters its map by a linear
            layer: `channels=(32, 32, 32, 32), dense=(256,)` is Burgess et al.'s network (502,005 parameters).
        initial: weights of convolutions and linear layers, scaled to their width or N(0, 0.02) whatever it is.
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
        size = small_map(shape, len(channels))
        self.latents = latents
        down: list[nn.Module] = []
        for width_in, width_out in zip((shape[0], *channels[:-1]), channels, strict=True):
            down += [nn.Conv2d(width_in, width_out, 4, stride=2, padding=1), nn.ReLU(inplace=True)]
        widths = (hidden, *dense)
        between = [
            layer
            for pair in zip(widths, dense, strict=False)
            for layer in (nn.Linear(*pair), nn.ReLU())
        ]
        self.encoder = nn.Sequential(
            *down,
            MapToVector(channels[-1], hidden, size),
            nn.ReLU(),
            nn.Flatten(),
            *between,
            nn.Linear(widths[-1], 2 * latents),
        )
        up: list[nn.Module] = []
        for width_in, width_out in zip(channels[:0:-1], channels[-2::-1], strict=True):
            up += [Up(width_in, width_out), nn.ReLU(inplace=True)]
        up = [nn.ReLU(), *up, OutputUp(channels[0], shape[0])]
        entry: list[nn.Module] = [nn.Linear(latents, widths[-1]), nn.ReLU()]
        for pair in zip(widths[::-1], widths[-2::-1], strict=False):
            entry += [nn.Linear(*pair), nn.ReLU()]
        if dense:
            entry += [
                nn.Linear(hidden, channels[-1] * size * size),
                nn.Unflatten(1, (channels[-1], size, size)),
            ]
        else:
            entry += [nn.Unflatten(1, (hidden, 1, 1)), VectorToMap(hidden, channels[-1], size)]
        self.decoder = nn.Sequential(*entry, *up)
        initialise(self, initial)
