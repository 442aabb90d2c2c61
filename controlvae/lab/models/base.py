"""Base class of convolutional VAEs: an encoder to a Gaussian posterior, a decoder to logits."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from controlvae.distributions import Posterior
from controlvae.lab.models.rate_conditioning import at_rate


class VAE(nn.Module):
    """VAE of images.

    `encoder` returns means and log-variances, (batch, 2 latents). `decoder` returns logits of the
    pixels.
    """

    encoder: nn.Sequential
    decoder: nn.Sequential
    latents: int
    pixel_log_variance: nn.Parameter | None  # of p(x|z), if it is learnt

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("pixel_log_variance", None)

    def learn_pixel_variance(self, start: float) -> None:
        """Make the variance of p(x|z) a parameter with this initial value."""
        self.pixel_log_variance = nn.Parameter(torch.tensor(math.log(start)))

    def encode(self, x: Tensor, rate: float | None = None) -> Posterior:
        """Return q(z|x) of images, (batch, *shape).

        Args:
            x: Images, (batch, *shape).
            rate: Rate in nats, for a rate-conditioned model. None takes its present one.
        """
        with at_rate(self, rate):
            return Posterior.from_encoder_output(self.encoder(x))

    def decode(self, z: Tensor, rate: float | None = None) -> Tensor:
        """Return logits of the pixels, (batch, *shape).

        Args:
            z: Codes, (batch, latents).
            rate: Rate in nats, for a rate-conditioned model. None takes its present one.
        """
        with at_rate(self, rate):
            return self.decoder(z)

    def decode_mean(self, z: Tensor) -> Tensor:
        """Return the mean of p(x|z): pixels in [0, 1], (batch, *shape)."""
        return torch.sigmoid(self.decode(z))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Posterior]:
        """Return logits for a sample of the posterior, and the posterior."""
        posterior = self.encode(x)
        return self.decode(posterior.sample(noise)), posterior

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Return pixel means of `count` images from the prior, (count, *shape).

        Args:
            count: Number of images.
            generator: Generator on the host, or None for torch's global one.
        """
        z = torch.randn(count, self.latents, generator=generator)
        return self.decode_mean(z.to(next(self.parameters()).device))

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """Return pixel means decoded from the posterior means of images, (batch, *shape)."""
        return self.decode_mean(self.encode(x).mean)


def final_map_size(shape: tuple[int, int, int], layers: int) -> int:
    """Return the side of the map that stride-2 layers leave of an image.

    Raises:
        ValueError: If the image is not square or its side is not divisible by 2 to the `layers`.
    """
    size, remainder = divmod(shape[1], 2**layers)
    if shape[1] != shape[2] or remainder or size < 1:
        raise ValueError(
            f"{layers} stride-2 layers need a square image with sides divisible by {2**layers}, "
            f"got {shape[1]}x{shape[2]}; choose another data.size, or fewer model.channels"
        )
    return size


def initialise(model: nn.Module, scheme: Literal["kaiming", "normal"] = "kaiming") -> None:
    """Initialise convolutions and linear layers as the released code does.

    Transposed convolutions keep torch's initialisation in both schemes.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            if scheme == "kaiming":
                nn.init.kaiming_normal_(module.weight)
            else:
                nn.init.normal_(module.weight, 0.0, 0.02)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
