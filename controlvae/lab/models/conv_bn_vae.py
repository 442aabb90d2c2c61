"""Convolutional VAE with batch norm, which the paper uses for photographs."""

from torch import nn

from controlvae.lab.models.base import VAE, final_map_size, initialise


class ConvBatchNormVAE(VAE):
    """Stride-2 4x4 convolutions with batch norm, a linear layer to the latents, and back.

    For 128x128 colour images with the default widths this is the released image network
    (1,991,755 parameters for 100 latents). Its decoder's batch norms use the larger epsilon 1e-3.

    Args:
        shape: Image shape, (channels, height, width). Square, with sides divisible by 2 to the
            number of `channels`.
        latents: Size of z.
        channels: Widths of the stride-2 layers.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (3, 128, 128),
        latents: int = 100,
        channels: tuple[int, ...] = (32, 32, 64, 64, 256),
    ) -> None:
        super().__init__()
        size = final_map_size(shape, len(channels))
        flat = channels[-1] * size * size
        self.latents = latents
        convolutions: list[nn.Module] = []
        for width_in, width_out in zip((shape[0], *channels[:-1]), channels, strict=True):
            convolutions += [
                nn.Conv2d(width_in, width_out, 4, stride=2, padding=1),
                nn.BatchNorm2d(width_out),
                nn.ReLU(),
            ]
        self.encoder = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(flat, 2 * latents))
        upsampling: list[nn.Module] = []
        for width_in, width_out in zip(channels[:0:-1], channels[-2::-1], strict=True):
            upsampling += [
                nn.ConvTranspose2d(width_in, width_out, 4, stride=2, padding=1),
                nn.BatchNorm2d(width_out, eps=1e-3),
                nn.ReLU(),
            ]
        self.decoder = nn.Sequential(
            nn.Linear(latents, flat),
            nn.ReLU(),
            nn.Unflatten(1, (channels[-1], size, size)),
            *upsampling,
            nn.ConvTranspose2d(channels[0], shape[0], 4, stride=2, padding=1),
        )
        initialise(self)
