"""Integration with diffusers: the KL of `AutoencoderKL` in nats per latent pixel.

>>> posterior = vae.encode(images).latent_dist
>>> rate = nats_per_latent_pixel(posterior)
>>> loss = reconstruction + control.step(rate) * rate

Codes of 4 × 32 × 32 and of 4 × 64 × 64 then share a target. With `cv.Auto` the reconstruction may
have any units. Gains of other laws are per nat per latent pixel.
"""

from typing import Any

from torch import Tensor


def nats_per_latent_pixel(posterior: Any) -> Tensor:
    """Return the mean KL per example and latent pixel.

    Args:
        posterior: `DiagonalGaussianDistribution` of shape (batch, channels, height, width).
    """
    _, _, height, width = posterior.mean.shape
    return posterior.kl().mean() / (height * width)
