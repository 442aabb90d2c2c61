"""Models of time series and counts: a latent dynamics model and a single-cell VAE."""

import math

import torch
from torch import Tensor

from laws.plants.base import (
    Losses,
    Plant,
    gaussian_kl,
    gaussian_kl_between,
    sample_gaussian,
    split_posterior,
)
from laws.stack import MLP, GRUCell, Linear, Stack


class LatentDynamics(Plant):
    """Recurrent state-space model whose prior is learned, as in world models.

    Hafner et al., *Learning latent dynamics for planning from pixels*, 2019. The data are noisy
    oscillations with jumps of phase; the KL is summed over the time steps.

    Args:
        stack: Stack of runs.
        latents: Width of the code of a time step.
        length: Time steps of a sequence.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, latents: int = 3, length: int = 6, batch: int = 24) -> None:
        super().__init__(stack)
        self.latents, self.length, self.batch = latents, length, batch
        self.cell = GRUCell(stack, latents, 16)
        self.posterior = MLP(stack, 16 + 4, 16, 2 * latents)
        self.prior = Linear(stack, 16, 2 * latents, gain=0.3)
        self.decoder = MLP(stack, 16 + latents, 16, 4)
        self.mixing = stack.constant(3, 4, scale=0.8)

    def losses(self, step: int) -> Losses:
        frames = self._draw_sequences()
        state = frames.new_zeros(self.stack.runs, self.batch, 16)
        loss = kl = torch.zeros(())
        for time in range(self.length):
            frame = frames[:, :, time]
            posterior = split_posterior(self.posterior(torch.cat([state, frame], -1)))
            prior = split_posterior(self.prior(state))
            z = sample_gaussian(self.stack, *posterior)
            error = self.decoder(torch.cat([state, z], -1)) - frame
            loss = loss + error.square().sum(-1).mean(-1) / 0.1
            kl = kl + gaussian_kl_between(*posterior, *prior).mean(-1)
            state = self.cell(z, state)
        return Losses(loss, kl, kl)

    def _draw_sequences(self) -> Tensor:
        jumps = self.stack.normal(self.batch, self.length) * 0.8
        phase = jumps.cumsum(-1) + torch.arange(self.length) * 0.6
        waves = torch.stack([phase.sin(), phase.cos(), (2 * phase).sin()], -1)
        frames = torch.bmm(waves.flatten(1, 2), self.mixing).unflatten(1, waves.shape[1:3])
        return frames + 0.1 * self.stack.normal(*frames.shape[1:])


class CountsVAE(Plant):
    """VAE of gene counts with a negative binomial likelihood, as for single cells.

    Lopez et al., *Deep generative modeling for single-cell transcriptomics*, 2018.

    Args:
        stack: Stack of runs.
        genes: Number of genes.
        latents: Width of the code.
        batch: Batch size.
    """

    def __init__(self, stack: Stack, genes: int = 32, latents: int = 6, batch: int = 32) -> None:
        super().__init__(stack)
        self.batch = batch
        self.data = _draw_counts(genes)
        self.encoder = MLP(stack, genes, 32, 2 * latents)
        self.decoder = MLP(stack, latents, 32, genes, bias=0.5)
        self.log_dispersion = stack.parameter(1, 1, genes, scale=0.0)

    def losses(self, step: int) -> Losses:
        (counts,) = self.stack.batch(self.data, size=self.batch)
        mean, log_variance = split_posterior(self.encoder(counts.log1p() - 1))
        log_rate = self.decoder(sample_gaussian(self.stack, mean, log_variance)).clamp(-8, 8)
        dispersion = self.log_dispersion[:, 0].clamp(-5, 5).exp()
        log_total = (log_rate.exp() + dispersion).log()
        log_likelihood = (
            torch.lgamma(counts + dispersion)
            - torch.lgamma(dispersion)
            + dispersion * (dispersion.log() - log_total)
            + counts * (log_rate - log_total)
        )
        kl = gaussian_kl(mean, log_variance).mean(-1)
        return Losses(-log_likelihood.sum(-1).mean(-1), kl, kl)


def _draw_counts(genes: int) -> Tensor:
    """Draw 4,000 cells of six types, each along a trajectory."""
    random = torch.Generator().manual_seed(0)
    types = torch.randint(6, (4_000,), generator=random)
    centres = torch.randn(6, genes, generator=random)
    drift = torch.randn(6, genes, generator=random)
    time = torch.rand(4_000, 1, generator=random) - 0.5
    log_rate = 1 + centres[types] + time * drift[types]
    size = 0.3 * torch.randn(4_000, 1, generator=random)
    return torch.poisson((log_rate + size).clamp(max=math.log(60)).exp(), generator=random)
