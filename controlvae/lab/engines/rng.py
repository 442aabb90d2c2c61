"""Per-step randomness: batch indices and latent noise as pure functions of (seed, step).

Nothing has to be saved, and a model draws the same numbers alone or next to others.
"""

import math
from functools import partial

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.data.batch_order import BatchOrder, stream_key
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.data.validation_split import training_indices

_LOW_32_BITS = 0xFFFFFFFF
_NOISE_STREAM = 0x6E6F697365


def make_batch_orders(experiment: Experiment, examples: Dataset) -> list[BatchOrder]:
    """Return one independent batch order for each batch that the objective takes per step."""
    training = experiment.training
    subset = training_indices(experiment, len(examples))
    order = examples.order
    if isinstance(examples, SentenceDataset | DialogDataset):
        order = partial(examples.order, shared_widths=training.widths == "shared")
    return [
        order(training.batch, training.seed, stream, subset)
        for stream in range(experiment.objective.batches)
    ]


def draw_batch_indices(orders: list[BatchOrder], first: int, steps: int) -> Tensor:
    """Return the example indices of consecutive steps, on the host: (steps, batches, batch).

    Args:
        orders: One order per batch of a step.
        first: First step, counted from zero.
        steps: Number of steps.
    """
    per_order = [
        torch.stack([order.indices(first + step) for step in range(steps)]) for order in orders
    ]
    return torch.stack(per_order, dim=1)


def noise_shape(experiment: Experiment) -> tuple[int, int, int]:
    """Return the shape of one step's noise, (draws, batch, latents)."""
    return experiment.objective.noise_draws, experiment.training.batch, experiment.model.latents


def noise_key(seed: int) -> int:
    """Return the key of a seed's noise. It is odd, as the generator requires, and well mixed."""
    return stream_key(seed, _NOISE_STREAM) | 1


def normal_noise(
    keys: Tensor, steps: Tensor, shape: tuple[int, ...], rows: slice = slice(None)
) -> Tensor:
    """Return standard normal noise for each pair of entries of `keys` and `steps`.

    Uses the counter-based generator of Widynski (*Squares: A Fast Counter-Based RNG*, 2020): four
    rounds of squaring on 64-bit words. It is written in plain tensor operations, so that a CUDA
    graph may contain it and every device draws the same integers. torch's own generators differ
    between devices and keep state.

    Args:
        keys: One key per model, int64, any shape.
        steps: Step numbers, int64, broadcastable against `keys`.
        shape: Shape of the noise of one pair, (..., batch, latents).
        rows: Rows of the batch to compute, such as those of one rank.

    Returns:
        float32, (*broadcast shape, *shape) with only these rows.
    """
    count = math.prod(shape)
    offsets = torch.arange(count, dtype=torch.int64, device=keys.device)
    if rows != slice(None):
        offsets = offsets.view(shape)[..., rows, :]
        shape = tuple(offsets.shape)
        offsets = offsets.reshape(-1)
    key = keys.unsqueeze(-1)
    word = (steps.unsqueeze(-1) * count + offsets) * key
    first, second = word, word + key
    for addend in (first, second, first):
        word = word * word + addend
        word = (word << 32) | ((word >> 32) & _LOW_32_BITS)
    word = ((word * word + second) >> 32) & _LOW_32_BITS
    # 23 bits and a half: exactly representable in float32 and never 0 or 1, so erfinv is finite.
    uniform = ((word >> 9).float() + 0.5) * 2.0**-22 - 1.0
    return (math.sqrt(2.0) * torch.erfinv(uniform)).view(*word.shape[:-1], *shape)


def random_permutations(noise: Tensor) -> Tensor:
    """Return one permutation of the batch per latent, by sorting noise (..., batch, latents)."""
    return noise.argsort(dim=-2)
