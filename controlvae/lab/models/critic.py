"""The critic that estimates total correlation from a density ratio."""

from torch import Tensor, nn

SLOPE = 0.2  # of the leaky rectifiers


class Critic(nn.Module):
    """Tells latents of one example (class 0) from latents shuffled across examples (class 1): two logits.

    With its defaults this is the discriminator of Kim & Mnih's FactorVAE (4,017,002 parameters for ten latents).
    """

    def __init__(self, latents: int, widths: tuple[int, ...] = (1000,) * 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for pair in zip((latents, *widths), widths, strict=False):
            layers += [nn.Linear(*pair), nn.LeakyReLU(SLOPE)]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.02)
                nn.init.zeros_(module.bias)

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)
