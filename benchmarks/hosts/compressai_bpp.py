"""Hold the bits per pixel of a CompressAI model, where its λ is chosen by a grid.

    python benchmarks/hosts/compressai_bpp.py --seeds 2

The loss is λ · 255² · squared error + bits per pixel, as in CompressAI's training example, with its
gradient clipping and its second optimiser for the quantiles. The other methods are its default
λ = 0.01, the nearest of four λ, and the advice in CompressAI's issue 185: change λ a
bit, train an epoch, repeat (10 % after every 50 steps).

CompressAI imports torchvision for a list of names. Where torchvision is not installed, an empty
module takes its place.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from autoencoder_terms import crop_photographs
from common import parse_arguments, save_entries
from comparison import Rule, Step, Task, compare
from torch import Tensor, nn

if find_spec("torchvision") is None:
    torchvision, transforms = ModuleType("torchvision"), ModuleType("torchvision.transforms")
    torchvision.__spec__, torchvision.transforms = ModuleSpec("torchvision", None), transforms
    sys.modules |= {"torchvision": torchvision, "torchvision.transforms": transforms}

from compressai.entropy_models import EntropyBottleneck
from compressai.layers import GDN
from compressai.losses import RateDistortionLoss
from compressai.models import CompressionModel
from compressai.models.utils import conv, deconv

_SIZE, _LR = 32, 2e-3
_LAMBDAS = (0.01, 0.0018, 0.0067, 0.0483)  # the default and three published ones


class SmallFactorizedPrior(CompressionModel):
    """Model of Ballé et al. (2018) with two convolutions instead of four: 1/4 of the resolution."""

    def __init__(self, width: int = 16, channels: int = 12) -> None:
        super().__init__()
        self.entropy_bottleneck = EntropyBottleneck(channels)
        self.encoder = nn.Sequential(conv(3, width), GDN(width), conv(width, channels))
        self.decoder = nn.Sequential(
            deconv(channels, width), GDN(width, inverse=True), deconv(width, 3)
        )

    def forward(self, images: Tensor) -> dict[str, Any]:
        latents, likelihoods = self.entropy_bottleneck(self.encoder(images))
        return {"x_hat": self.decoder(latents), "likelihoods": {"y": likelihoods}}


class LambdaByHand:
    """Rule that changes λ by 10 % towards the target after every 50 steps."""

    def __init__(self, target: float) -> None:
        self.target, self.weight, self.rates = target, 0.01, []

    def __call__(self, rate: Tensor) -> float:
        self.rates.append(rate.item())
        if len(self.rates) == 50:
            self.weight *= 1.1 if sum(self.rates) / 50 < self.target else 1 / 1.1
            self.rates = []
        return self.weight


def make_step(seed: int) -> Step:
    """Return the training step of a new model."""
    torch.manual_seed(seed)
    net = SmallFactorizedPrior()
    quantiles = [p for name, p in net.named_parameters() if name.endswith(".quantiles")]
    others = [p for name, p in net.named_parameters() if not name.endswith(".quantiles")]
    optimiser = torch.optim.Adam(others, lr=_LR)
    quantile_optimiser = torch.optim.Adam(quantiles, lr=1e-3)
    criterion = RateDistortionLoss()

    def step(rule: Rule) -> tuple[float, float]:
        images = crop_photographs(_SIZE)
        terms = criterion(net(images), images)
        rate = terms["bpp_loss"]
        weight = rule(rate)
        loss = weight * 255**2 * terms["mse_loss"] + rate
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        quantile_optimiser.zero_grad()
        net.aux_loss().backward()
        quantile_optimiser.step()
        return rate.item(), float(weight)

    return step


TASK = Task(
    "CompressAI",
    "compressai",
    "rate",
    "bits per pixel",
    (0.6, 1.0, 1.5),
    1_500,
    make_step,
    "a small factorised prior, 32×32 crops of photographs; fixed λ 0.01, the "
    "nearest of 0.01, 0.0018, 0.0067 and 0.0483, and λ changed by 10 % after every 50 steps",
    {"direction": "inverse", "beta_init": 0.01},  # the default λ, as in the integration
)

if __name__ == "__main__":
    arguments = parse_arguments(__doc__, seeds=2)
    weights = {f"λ {weight:g}": weight for weight in _LAMBDAS}
    rules = {"λ by hand": LambdaByHand}
    save_entries("compressai_bpp", compare(TASK, arguments.seeds, weights, rules), arguments.out)
