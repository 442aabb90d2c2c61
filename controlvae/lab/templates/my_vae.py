"""A VAE, its data and its training, to start from. It trains in seconds on a CPU.

controlvae train my_vae.py
"""

import torch
from torch import Tensor, nn

import controlvae as cv
from controlvae import lab


class VAE(nn.Module):
    """A small VAE. Replace it with your model: `encode` and `decode` are all that is needed."""

    def __init__(self, latents: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),  # 16x16 to 8x8
            nn.ReLU(),
            nn.Conv2d(16, 16, 4, stride=2, padding=1),  # 8x8 to 4x4
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 2 * latents),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latents, 256),
            nn.ReLU(),
            nn.Unflatten(1, (16, 4, 4)),
            nn.ConvTranspose2d(16, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z|x)."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Return the logits of the pixels. The lab adds sampling, likelihood and KL."""
        return self.decoder(z)


def dataset() -> Tensor:
    """Return 2,000 images of a disc, (2000, 1, 16, 16), that differ in place and size.

    Replace them with your data: arrays, tensors, a Dataset, a DataLoader or a folder of images.
    """
    generator = torch.Generator().manual_seed(0)
    x, y, radius = torch.rand(3, 2000, 1, 1, generator=generator)
    grid = torch.arange(16.0)
    distance = ((grid - 4 - 8 * x) ** 2 + (grid[:, None] - 4 - 8 * y) ** 2).sqrt()
    return (distance < 2 + 2 * radius).float()[:, None]


experiment = lab.define(
    VAE,
    dataset,
    law=cv.Auto(8.0),  # nats per image that the code carries; `controlvae target` measures a range
    steps=2000,
    validation=0.1,  # hold out a tenth, and keep the best weights
)
