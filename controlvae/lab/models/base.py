"""What every convolutional VAE here has: an encoder to a Gaussian posterior, and a decoder to logits."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from controlvae.distributions import Posterior


class VAE(nn.Module):
    """`encoder` gives means beside log-variances; `decoder` gives logits of the pixels."""

    encoder: nn.Sequential
    decoder: nn.Sequential
    latents: int
    pixel_log_variance: nn.Parameter | None  # of p(x|z), where it is learnt

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("pixel_log_variance", None)

    def learn_pixel_variance(self, start: float) -> None:
        self.pixel_log_variance = nn.Parameter(torch.tensor(math.log(start)))

    def encode(self, x: Tensor) -> Posterior:
        return Posterior.of(self.encoder(x))

    def decode(self, z: Tensor) -> Tensor:
        """Logits of the pixels: (batch, *shape)."""
        return self.decoder(z)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Posterior]:
        posterior = self.encode(x)
        return self.decode(posterior.sample(noise)), posterior


def small_map(shape: tuple[int, int, int], layers: int) -> int:
    """The side of the map that so many stride-2 layers leave of a picture."""
    size, remainder = divmod(shape[1], 2**layers)
    if shape[1] != shape[2] or remainder or size < 1:
        need = f"{layers} stride-2 layers need a square picture divisible by {2**layers}"
        raise ValueError(
            f"{need}, got {shape[1]}x{shape[2]}; choose another data.size, or fewer model.channels"
        )
    return size


def initialise(model: nn.Module, initial: Literal["kaiming", "normal"] = "kaiming") -> None:
    """The released initialisations: both leave transposed convolutions at torch's own."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            if initial == "kaiming":
                nn.init.kaiming_normal_(module.weight)
            else:
                nn.init.normal_(module.weight, 0.0, 0.02)
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
