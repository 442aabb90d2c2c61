"""What chance a step needs: which examples it meets and what noise it draws, as functions of (seed, step)."""

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import Experiment
from controlvae.lab.data.dataset import BatchOrder, Dataset, stream_key
from controlvae.lab.data.registry import validation_settings

_VALIDATION = 0x76616C6964  # the stream that validation examples are drawn from


def orders(experiment: Experiment, examples: Dataset) -> list[BatchOrder]:
    """The orders its batches come in: one, and an independent second where a critic wants one."""
    training, batches = experiment.training, experiment.objective.batches
    among = trained_on(experiment, len(examples))
    return [
        examples.order(training.batch, training.seed, stream, among) for stream in range(batches)
    ]


def trained_on(experiment: Experiment, examples: int) -> Tensor | None:
    """Which examples are trained on; None is all, where none are validated with or the data has a part for that."""
    validation = experiment.training.validation
    if not validation or validation_settings(experiment.data) is not None:
        return None
    return parts(examples, validation)[0]


def parts(examples: int, validation: float) -> tuple[Tensor, Tensor]:
    """Which examples to train on and which to validate with: a fixed random choice, the same for every seed."""
    count = validated(examples, validation)
    if count >= examples:
        raise UserError(
            f"training.validation={validation:,} leaves nothing of {examples:,} examples to train on; set it lower"
        )
    order = torch.randperm(
        examples, generator=torch.Generator().manual_seed(stream_key(0, _VALIDATION))
    )
    return order[count:].sort().values, order[:count].sort().values


def validated(examples: int, validation: float) -> int:
    """How many of these examples `training.validation` asks for: a number, or below 1 a share, of at least one."""
    return max(1, round(validation * examples)) if 0 < validation < 1 else int(validation)


def noise_shape(experiment: Experiment) -> tuple[int, int, int]:
    """Of a step's noise, (draws, batch, latents)."""
    return experiment.objective.draws, experiment.training.batch, experiment.model.latents


def block_indices(own: list[BatchOrder], first: int, steps: int) -> Tensor:
    """The examples of so many steps, on the host: (steps, batches, batch)."""
    each = [torch.stack([order.indices(first + step) for step in range(steps)]) for order in own]
    return torch.stack(each, dim=1)


def shuffling(noise: Tensor) -> Tensor:
    """A random order of the batch for every latent, from noise (..., batch, latents)."""
    return noise.argsort(dim=-2)
