"""The convolutional VAE of the paper's appendix, as a plain module."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from controlvae.models.layers import OutputUp


class Posterior(NamedTuple):
    """q(z|x), a Gaussian with independent latents."""

    mean: Tensor  # (batch, latents)
    log_variance: Tensor  # (batch, latents)

    def sample(self, noise: Tensor) -> Tensor:
        """z = mean + standard deviation x noise, with noise from N(0, I)."""
        return self.mean + torch.exp(0.5 * self.log_variance) * noise


class ConvVAE(nn.Module):
    """Stride-2 4x4 convolutions down to a small map, one hidden layer to the latents, and the mirror image back.

    For 64x64 pictures with the default widths this is the network of the paper's Table 10 as its released code builds
    it (763,285 parameters): the printed "FC 256, FC 2x10" is a 4x4 convolution to 256 and one linear layer.

    Args:
        shape: of a picture, (channels, height, width); height and width are 4 times a power of two.
        latents: size of z.
        channels: widths of the stride-2 layers; the map left after them is convolved whole into `hidden`.
        hidden: width of the hidden layer.
        dense: widths of further hidden layers before the latents. With any, the decoder enters its map by a linear
            layer: `channels=(32, 32, 32, 32), dense=(256,)` is Burgess et al.'s network (502,005 parameters).
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 64, 64),
        latents: int = 10,
        channels: tuple[int, ...] = (32, 32, 64, 64),
        hidden: int = 256,
        dense: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        size, remainder = divmod(shape[1], 2 ** len(channels))
        if shape[1] != shape[2] or remainder or size < 1:
            need = f"{len(channels)} stride-2 layers need a square picture divisible by {2 ** len(channels)}"
            raise ValueError(f"{need}, got {shape[1]}x{shape[2]}")
        self.latents = latents
        down: list[nn.Module] = []
        for width_in, width_out in zip((shape[0], *channels[:-1]), channels, strict=True):
            down += [nn.Conv2d(width_in, width_out, 4, stride=2, padding=1), nn.ReLU()]
        widths = (hidden, *dense)
        between = [layer for pair in zip(widths, dense, strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.encoder = nn.Sequential(
            *down, nn.Conv2d(channels[-1], hidden, size), nn.ReLU(), nn.Flatten(), *between,
            nn.Linear(widths[-1], 2 * latents),
        )  # fmt: skip
        up: list[nn.Module] = []
        for width_in, width_out in zip(channels[:0:-1], channels[-2::-1], strict=True):
            up += [nn.ReLU(), nn.ConvTranspose2d(width_in, width_out, 4, stride=2, padding=1)]
        up += [nn.ReLU(), OutputUp(channels[0], shape[0])]
        entry: list[nn.Module] = [nn.Linear(latents, widths[-1]), nn.ReLU()]
        for pair in zip(widths[::-1], widths[-2::-1], strict=False):
            entry += [nn.Linear(*pair), nn.ReLU()]
        if dense:
            entry += [nn.Linear(hidden, channels[-1] * size * size), nn.Unflatten(1, (channels[-1], size, size))]
        else:
            entry += [nn.Unflatten(1, (hidden, 1, 1)), nn.ConvTranspose2d(hidden, channels[-1], size)]
        self.decoder = nn.Sequential(*entry, *up)
        for module in self.modules():
            # The released code leaves transposed convolutions at torch's own initialisation.
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def encode(self, x: Tensor) -> Posterior:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return Posterior(mean, log_variance)

    def decode(self, z: Tensor) -> Tensor:
        """Logits of the pixels: (batch, *shape)."""
        return self.decoder(z)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Posterior]:
        posterior = self.encode(x)
        return self.decode(posterior.sample(noise)), posterior
