"""VAEs on vectors: binary vectors, digits and tables."""

import numpy as np
import torch
from torch import Tensor

from laws.data import load_array
from laws.plants.base import (
    Losses,
    Plant,
    bernoulli_loss,
    cross_entropy,
    gaussian_kl,
    gaussian_log_density,
    sample_gaussian,
    split_posterior,
)
from laws.stack import MLP, Linear, Stack


def binary_vectors() -> Tensor:
    """Return 4,096 vectors of 64 bits from 16 clusters."""
    random = np.random.default_rng(0)
    probabilities = np.tile(random.random((16, 64)), (256, 1))
    return torch.from_numpy((random.random(probabilities.shape) < probabilities).astype("f4"))


class LinearVAE(Plant):
    """Linear encoder and decoder on binary vectors, the model of the README.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, latents: int = 8, batch: int = 64) -> None:
        super().__init__(stack)
        self.data, self.batch = binary_vectors(), batch
        self.encoder = Linear(stack, 64, 2 * latents)
        self.decoder = Linear(stack, latents, 64)

    def losses(self, step: int) -> Losses:
        (x,) = self.stack.batch(self.data, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(x))
        z = sample_gaussian(self.stack, mean, log_variance)
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(bernoulli_loss(self.decoder(z), x).mean(-1), kl, kl)


class DigitsVAE(Plant):
    """Perceptron VAE on digits.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        hidden: Hidden units.
        batch: Batch size.
        gain: Factor of the initial weights that write and read the code. Near zero, the model
            starts next to the saddle point of a collapsed code.
        shift_at: Step at which the data change from the digits 0 to 4 to inverted digits 5 to 9.
    """

    def __init__(
        self,
        stack: Stack,
        latents: int = 8,
        hidden: int = 32,
        batch: int = 32,
        gain: float = 1.0,
        shift_at: int | None = None,
    ) -> None:
        super().__init__(stack)
        self.batch, self.shift_at = batch, shift_at
        digits, classes = load_array("digits"), load_array("digit_classes")
        self.before = digits[classes < 5] if shift_at is not None else digits
        self.after = 1 - digits[classes >= 5]
        self.encoder = MLP(stack, 64, hidden, 2 * latents, gain=gain)
        self.decoder_in = Linear(stack, latents, hidden, gain=gain)
        self.decoder_out = Linear(stack, hidden, 64)

    def losses(self, step: int) -> Losses:
        has_shifted = self.shift_at is not None and step >= self.shift_at
        (x,) = self.stack.batch(self.after if has_shifted else self.before, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(x))
        z = sample_gaussian(self.stack, mean, log_variance)
        logits = self.decoder_out(self.decoder_in(z).tanh())
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(bernoulli_loss(logits, x).mean(-1), kl, kl)


class TableVAE(Plant):
    """VAE on a table with real, categorical, binary and count columns.

    Args:
        stack: Stack of runs.
        latents: Width of the code.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, latents: int = 6, batch: int = 32) -> None:
        super().__init__(stack)
        self.batch = batch
        self.columns = [
            load_array(f"table_{name}") for name in ("values", "categories", "binary", "counts")
        ]
        self.encoder = MLP(stack, 12 + 12 + 1 + 1, 32, 2 * latents)
        self.decoder = MLP(stack, latents, 32, 12 + 12 + 1 + 1)
        self.log_variance = stack.parameter(1, 12, scale=0.0)

    def losses(self, step: int) -> Losses:
        values, categories, binary, counts = self.stack.batch(*self.columns, size=self.batch)
        one_hot = torch.nn.functional.one_hot(categories, 4).flatten(-2).float()
        x = torch.cat([values, one_hot, binary, counts.log1p()], -1)
        mean, log_variance = split_posterior(self.encoder(x))
        outputs = self.decoder(sample_gaussian(self.stack, mean, log_variance))
        real, logits, flag, log_rate = outputs.split([12, 12, 1, 1], -1)
        log_rate = log_rate.clamp(max=5)
        loss = (
            -gaussian_log_density(values, real, self.log_variance)
            + cross_entropy(logits.unflatten(-1, (3, 4)), categories).sum(-1)
            + bernoulli_loss(flag, binary)
            + (log_rate.exp() - counts * log_rate).sum(-1)
        )
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(loss.mean(-1), kl, kl)
