"""The convolutional VAE with batch norm that the paper uses for photographs, as a plain module."""

from torch import nn

from controlvae.lab.models.base import VAE, initialise, small_map
from controlvae.lab.models.layers import OutputUp, Up


class ImageVAE(VAE):
    """Stride-2 4x4 convolutions with batch norm down to a small map, a linear layer to the latents, and back.

    For 128x128 colour pictures with the default widths this is the released image network (1,991,755 parameters for
    100 latents). Its decoder's batch norms use the larger epsilon 1e-3.

    Args:
        shape: of a picture, (channels, height, width); height and width are a power of two times the small map's.
        latents: size of z.
        channels: widths of the stride-2 layers.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 128, 128),
        latents: int = 100,
        channels: tuple[int, ...] = (32, 32, 64, 64, 256),
    ) -> None:
        super().__init__()
        size = small_map(shape, len(channels))
        self.latents = latents
        down: list[nn.Module] = []
        for width_in, width_out in zip((shape[0], *channels[:-1]), channels, strict=True):
            down += [
                nn.Conv2d(width_in, width_out, 4, stride=2, padding=1),
                nn.BatchNorm2d(width_out),
            ]
            down += [nn.ReLU(inplace=True)]
        inner = channels[-1] * size * size
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(inner, 2 * latents))
        up: list[nn.Module] = []
        for width_in, width_out in zip(channels[:0:-1], channels[-2::-1], strict=True):
            up += [
                Up(width_in, width_out),
                nn.BatchNorm2d(width_out, eps=1e-3),
                nn.ReLU(inplace=True),
            ]
        self.decoder = nn.Sequential(
            nn.Linear(latents, inner),
            nn.ReLU(),
            nn.Unflatten(1, (channels[-1], size, size)),
            *up,
            OutputUp(channels[0], shape[0]),
        )
        initialise(self)
