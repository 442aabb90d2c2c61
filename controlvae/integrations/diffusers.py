"""diffusers' `AutoencoderKL`, and other codes that are pictures: KL in nats per latent pixel.

>>> posterior = vae.encode(pictures).latent_dist
>>> rate = nats_per_latent_pixel(posterior)
>>> loss = reconstruction + control.step(rate) * rate

A code of 4 × 32 × 32 and one of 4 × 64 × 64 then share a target. The reconstruction may have any units with
`cv.Auto`; with other laws, gains are per nat per latent pixel.
"""

from typing import Any

from torch import Tensor


def nats_per_latent_pixel(posterior: Any) -> Tensor:
    """The KL of a `DiagonalGaussianDistribution` `(batch, channels, height, width)`, by batch and latent pixel."""
    _, _, height, width = posterior.mean.shape
    return posterior.kl().mean() / (height * width)
