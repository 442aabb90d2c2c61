"""What chance a step needs: which examples it meets and what noise it draws, as functions of (seed, step)."""

import torch
from torch import Tensor

from controlvae.data.examples import Order
from controlvae.experiments import Experiment, TotalCorrelation


def orders(experiment: Experiment, examples: int) -> list[Order]:
    """The orders its batches come in: one, and an independent second where a critic wants one."""
    training, batches = experiment.training, 2 if isinstance(experiment.objective, TotalCorrelation) else 1
    return [Order(examples, training.batch, training.seed, stream) for stream in range(batches)]


def noise_shape(experiment: Experiment) -> tuple[int, int, int]:
    """Of a step's noise, (draws, batch, latents): z's; with a critic, z's of the second batch and a shuffling."""
    draws = 3 if isinstance(experiment.objective, TotalCorrelation) else 1
    return draws, experiment.training.batch, experiment.model.latents


def block_indices(own: list[Order], first: int, steps: int) -> Tensor:
    """The examples of so many steps, on the host: (steps, batches, batch)."""
    each = [torch.stack([order.indices(first + step) for step in range(steps)]) for order in own]
    return torch.stack(each, dim=1)


def shuffling(noise: Tensor) -> Tensor:
    """A random order of the batch for every latent, from noise (..., batch, latents)."""
    return noise.argsort(dim=-2)
