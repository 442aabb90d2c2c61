"""What the examples share: data, a small VAE in torch, the arguments, and the figure of a KL at its target."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Trace(NamedTuple):
    """What an example shows: the KL of every step or epoch against the set point, and the weight that did it."""

    target: float
    kl: list[float]
    beta: list[float]

    def end(self) -> float:
        """The mean KL over the last fifth."""
        last = self.kl[-max(1, len(self.kl) // 5) :]
        return sum(last) / len(last)

    def draw(self, path: Path, units: str = "nats per example", time: str = "step") -> None:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, (above, below) = plt.subplots(
            2, 1, sharex=True, figsize=(6, 4.5), layout="constrained"
        )
        above.plot(self.kl, linewidth=0.8, label="KL")
        above.axhline(
            self.target,
            color="black",
            linestyle="--",
            linewidth=0.8,
            label=f"target {self.target:g}",
        )
        above.set(ylabel=f"KL ({units})", ylim=(0, 2.5 * self.target))
        above.legend()
        below.plot(self.beta, linewidth=0.8, color="tab:orange")
        below.set(xlabel=time, ylabel="β")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)
        print(f"KL {self.end():.2f} over the last fifth, target {self.target:g}; figure in {path}")


def arguments(
    given: Sequence[str] | None, about: str | None, steps: int = 2_000
) -> argparse.Namespace:
    """`--steps N` and `--out figure.png`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--steps", type=int, default=steps, help="optimiser steps (default %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("kl.png"),
        help="where the figure goes (default %(default)s)",
    )
    return parser.parse_args(given)


def binary_vectors(seed: int = 0) -> np.ndarray:
    """4,096 vectors of 64 bits from 16 groups, float32."""
    random = np.random.default_rng(seed)
    chances = np.tile(random.random((16, 64)), (256, 1))
    return (random.random(chances.shape) < chances).astype(np.float32)


class SmallVAE(nn.Module):
    """Linear encoder and decoder, eight latents; returns reconstruction and KL in nats per example."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 16), nn.Linear(8, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        logits = self.decoder(mean + torch.exp(log_variance / 2) * torch.randn_like(mean))
        recon = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        kl = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2 / len(x)
        return recon, kl
