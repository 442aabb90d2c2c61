"""Integration with diffusers: the KL of its autoencoders for images, sounds and videos.

>>> posterior = vae.encode(images).latent_dist
>>> rate = nats_per_latent_pixel(posterior)
>>> loss = reconstruction + control.step(rate) * rate

Codes of 4 × 32 × 32 and of 4 × 64 × 64 then share a target. With `cv.Auto` the reconstruction may
have any units. Gains of other laws are per nat per latent pixel.

The methods `kl()` of diffusers are not used. That of `DiagonalGaussianDistribution` sums three axes
after the batch: it fails for sounds (batch, channels, frames) and leaves an axis of videos (batch,
channels, frames, height, width). That of `AutoencoderOobleck` is twice the KL.
"""

from typing import Any

import torch
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl, nats_per_position


def as_posterior(distribution: Any) -> Posterior:
    """Return the means and log-variances of a diffusers distribution, latents of any rank."""
    return Posterior(distribution.mean, distribution.logvar)


def kl_per_example(distribution: Any) -> Tensor:
    """Return the KL of each example in nats: (batch,).

    It is zero for a deterministic distribution, as in diffusers. `bits_per_pixel` and
    `bits_per_dimension` of `controlvae.distributions` convert its mean.

    Args:
        distribution: `latent_dist` of an encoder's output, of shape (batch, channels, ...).
    """
    if getattr(distribution, "deterministic", False):
        mean = distribution.mean
        return torch.zeros(len(mean), device=mean.device)
    return gaussian_kl(as_posterior(distribution), "example")


def nats_per_latent_pixel(posterior: Any) -> Tensor:
    """Return the mean KL per example and latent position.

    A position is a pixel of an image's code, a frame of a sound's, and a pixel of a latent frame of
    a video's.

    Args:
        posterior: `latent_dist` of an encoder's output, of shape (batch, channels, ...).
    """
    return nats_per_position(kl_per_example(posterior).mean(), posterior.mean)
