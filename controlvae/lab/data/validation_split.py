"""Split of a data set into training and validation examples, as `training.validation` sets it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import Experiment
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.registry import validation_settings

_VALIDATION_STREAM = 0x76616C6964  # random stream that chooses the validation examples


def training_indices(experiment: Experiment, examples: int) -> Tensor | None:
    """Return the indices to train on, or None if all examples are trained on.

    None are held out without validation, and if the data set has its own validation split.
    """
    validation, skip = experiment.training.validation, experiment.training.skip
    if not validation or validation_settings(experiment.data) is not None:
        return without_skipped(None, skip, examples)
    return without_skipped(split_train_validation(examples, validation)[0], skip, examples)


def without_skipped(indices: Tensor | None, skip: Sequence[int], examples: int) -> Tensor | None:
    """Return indices without those that `training.skip` names. None stands for all examples.

    Args:
        indices: Indices to train on, or None for all.
        skip: Indices to leave out.
        examples: Number of examples.
    """
    if not skip:
        return indices
    chosen = torch.arange(examples) if indices is None else indices
    return chosen[~torch.isin(chosen, torch.tensor(skip, dtype=chosen.dtype))]


def split_train_validation(examples: int, validation: float) -> tuple[Tensor, Tensor]:
    """Return training and validation indices: a fixed random choice, the same for every seed."""
    count = count_validation_examples(examples, validation)
    if count >= examples:
        raise UserError(
            f"training.validation must leave examples to train on, got {validation:,} "
            f"of {examples:,}; set it lower"
        )
    generator = torch.Generator().manual_seed(stream_key(0, _VALIDATION_STREAM))
    order = torch.randperm(examples, generator=generator)
    return order[count:].sort().values, order[:count].sort().values


def count_validation_examples(examples: int, validation: float) -> int:
    """Return the number of validation examples.

    `training.validation` is that number, or below 1 a share of the examples (at least one).
    """
    return max(1, round(validation * examples)) if 0 < validation < 1 else int(validation)
