"""Models and data of `plain_vib.py` and `plain_tcvae.py`, without the training loop."""

import math

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.lab.data.sprite_renderer import IMAGE_COUNT, render


class BottleneckClassifier(nn.Module):
    """Classifier of 8 × 8 digits through a Gaussian code of 16 latents."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.decoder = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Posterior]:
        posterior = Posterior.from_encoder_output(self.encoder(images))
        code = posterior.sample(torch.randn_like(posterior.mean))
        return self.decoder(code), posterior


def load_digit_vectors() -> tuple[Tensor, Tensor]:
    """Return 1,797 images of 64 values in [0, 1] and their labels, in random order."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(images).float()[order] / 16, torch.from_numpy(labels)[order]


class ShapesVAE(nn.Module):
    """VAE of 16 × 16 binary images with six latents."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 12))
        self.decoder = nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 256))

    def forward(self, images: Tensor) -> tuple[Tensor, Posterior, Tensor]:
        posterior = Posterior.from_encoder_output(self.encoder(images.flatten(1)))
        code = posterior.sample(torch.randn_like(posterior.mean))
        return self.decoder(code).view_as(images), posterior, code


def total_correlation(posterior: Posterior, code: Tensor) -> Tensor:
    """Return the total correlation of the code in nats, estimated from a batch.

    The aggregate posterior is the mixture of the batch's posteriors. The paper's estimator has the
    same gradient. It is larger by (latents - 1) log N for N training images.

    Args:
        posterior: Posterior of the batch: (batch, latents).
        code: One sample for each image: (batch, latents).
    """
    distance = (code[:, None] - posterior.mean) ** 2 * torch.exp(-posterior.log_variance)
    constant = posterior.log_variance + math.log(2 * math.pi)
    log_density = -0.5 * (distance + constant)  # (batch, batch, latents)
    log_count = math.log(len(code))
    joint = log_density.sum(2).logsumexp(1) - log_count
    marginals = log_density.logsumexp(1) - log_count
    return (joint - marginals.sum(1)).mean()


def load_shapes(count: int = 4_096) -> Tensor:
    """Return random 2D Shapes at a quarter of their resolution: (count, 1, 16, 16)."""
    indices = np.random.default_rng(0).choice(IMAGE_COUNT, count, replace=False)
    return torch.from_numpy(render(indices)).reshape(-1, 1, 64, 64)[:, :, ::4, ::4].float()
