"""Data and loss terms that the benchmarks of autoencoders share.

Pretrained perceptual networks and large data sets cannot be downloaded everywhere. Photographs come
with scikit-learn, and distances of fixed random features stand for a perceptual loss.
"""

from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn


@cache
def load_photographs() -> Tensor:
    """Return scikit-learn's two photographs in [0, 1]: (2, 3, 427, 640)."""
    images = torch.stack([torch.from_numpy(image.copy()) for image in load_sample_images().images])
    return images.permute(0, 3, 1, 2).float() / 255


def crop_photographs(size: int) -> Tensor:
    """Return random crops in [0, 1], one from each of 16 regions: (16, 3, size, size).

    Regions differ in detail. A batch that has one crop of each is less noisy.
    """
    crops = []
    for photograph in load_photographs():
        for rows in photograph.tensor_split(2, 1):
            for region in rows.tensor_split(4, 2):
                top = int(torch.randint(region.shape[1] - size, ()))
                left = int(torch.randint(region.shape[2] - size, ()))
                crops.append(region[:, top : top + size, left : left + size])
    return torch.stack(crops)


@cache
def load_digit_images() -> Tensor:
    """Return scikit-learn's handwritten digits in [0, 1]: (1797, 1, 8, 8)."""
    return torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16


class RandomFeatures(nn.Module):
    """Distance of fixed random convolution features, in place of a pretrained perceptual loss."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = nn.Conv2d(channels, 16, 5, stride=2).requires_grad_(False)

    def forward(self, images: Tensor, others: Tensor) -> Tensor:
        return F.mse_loss(self.features(images), self.features(others))


class PatchCritic(nn.Module):
    """Discriminator that judges patches of an image, with its optimiser and hinge loss."""

    def __init__(self, channels: int, lr: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, 2, 1)
        )
        self.optimiser = torch.optim.Adam(self.parameters(), lr=lr, betas=(0.5, 0.9))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def train_step(self, real: Tensor, fake: Tensor) -> None:
        """Take one optimiser step of the hinge loss."""
        loss = F.relu(1 - self(real)).mean() + F.relu(1 + self(fake.detach())).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
