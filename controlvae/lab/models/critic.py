"""Critic network that estimates total correlation from a density ratio."""

from torch import Tensor, nn

NEGATIVE_SLOPE = 0.2  # of the leaky ReLUs


class Critic(nn.Module):
    """Classifier of latents of one example (class 0) and latents shuffled across examples (1).

    With the default widths this is the discriminator of Kim & Mnih's FactorVAE (4,017,002
    parameters for ten latents).

    Args:
        latents: Size of z.
        widths: Widths of the hidden layers.
    """

    def __init__(self, latents: int, widths: tuple[int, ...] = (1000,) * 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width_in, width_out in zip((latents, *widths), widths, strict=False):
            layers += [nn.Linear(width_in, width_out), nn.LeakyReLU(NEGATIVE_SLOPE)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Return two logits per row of z, (batch, latents)."""
        return self.layers(z)
