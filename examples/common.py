"""Shared parts of the examples: data, a small VAE in torch, arguments, and a figure of the KL."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Trace(NamedTuple):
    """KL and weight of every step or epoch, and the target of the KL."""

    target: float
    kl: list[float]
    beta: list[float]

    def final_kl(self) -> float:
        """Return the mean KL over the last fifth."""
        last = self.kl[-max(1, len(self.kl) // 5) :]
        return sum(last) / len(last)

    def draw(
        self, path: Path, units: str = "nats per example", time: str = "step", name: str = "KL"
    ) -> None:
        """Draw KL and weight over time, and print the final KL.

        Args:
            path: Image file to write.
            units: Units of the KL.
            time: Label of the time axis.
            name: Name of the controlled quantity, if it is not a KL.
        """
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, (above, below) = plt.subplots(
            2, 1, sharex=True, figsize=(6, 4.5), layout="constrained"
        )
        above.plot(self.kl, linewidth=0.8, label=name)
        line = {"color": "black", "linestyle": "--", "linewidth": 0.8}
        above.axhline(self.target, **line, label=f"target {self.target:g}")
        above.set(ylabel=f"{name} ({units})", ylim=(0, 2.5 * self.target))
        above.legend()
        below.plot(self.beta, linewidth=0.8, color="tab:orange")
        below.set(xlabel=time, ylabel="β")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)
        print(f"mean {name} of the last fifth {self.final_kl():.2f}, target {self.target:g}")
        print(f"figure written to {path}")


def parse_arguments(
    argv: Sequence[str] | None, description: str | None, steps: int = 2_000
) -> argparse.Namespace:
    """Parse `--steps N` and `--out figure.png`.

    Args:
        argv: Arguments, or None for those of the command line.
        description: Text of the help.
        steps: Default number of steps.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--steps", type=int, default=steps, help="optimiser steps (default %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("kl.png"), help="figure to write (default %(default)s)"
    )
    return parser.parse_args(argv)


def binary_vectors(seed: int = 0) -> np.ndarray:
    """Return 4,096 float32 vectors of 64 bits from 16 clusters."""
    random = np.random.default_rng(seed)
    probabilities = np.tile(random.random((16, 64)), (256, 1))
    return (random.random(probabilities.shape) < probabilities).astype(np.float32)


class SmallVAE(nn.Module):
    """VAE with a linear encoder and decoder and eight latents.

    It returns the reconstruction loss and the KL, in nats per example.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 16), nn.Linear(8, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        logits = self.decoder(mean + torch.exp(log_variance / 2) * torch.randn_like(mean))
        recon = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        kl = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2 / len(x)
        return recon, kl
