"""A few examples of a user's data, read and checked before training starts."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.custom.adapter import CustomVAE
from controlvae.lab.custom.batches import (
    cast_batch,
    count_examples,
    iter_tensors,
    map_tensors,
    select_input,
)
from controlvae.lab.custom.checks import explain_failures
from controlvae.lab.custom.failures import find_non_finite
from controlvae.lab.custom.noise import Noise
from controlvae.lab.custom.seeding import seeded
from controlvae.lab.custom.sources import ArrayData, IndexedData, StreamData, UserData
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.ranks.gradients import keep_buffers

_PROBE_EXAMPLES = 8
_ROUNDING = 1e-3  # of images that were resized
_SPREAD_EXAMPLES = 64  # from all over the data


def read_few(data: UserData | Dataset, batch: int) -> Any:
    """Return a few examples from the beginning of the data, on the host.

    Args:
        data: Data of any kind.
        batch: Number of examples in a batch of training.

    Raises:
        UserError: If there is none, or it cannot be read.
    """
    if isinstance(data, StreamData):
        return map_tensors(_first_batch(data, batch), lambda tensor: tensor[:_PROBE_EXAMPLES])
    indices = torch.arange(min(len(data), _PROBE_EXAMPLES, batch))
    with seeded(0, 0):
        if isinstance(data, ArrayData | IndexedData):
            return data.fetch(indices)
        return data.batch(indices)


def read_spread(data: UserData | Dataset, batch: int, drop_corrupt: bool = False) -> Any:
    """Return examples from all over the data, or the first batch of a stream, on the host.

    Args:
        data: Data of any kind.
        batch: Number of examples in a batch of training.
        drop_corrupt: Leave out examples with NaN or infinity. A run that repairs itself skips them.

    Raises:
        UserError: If they cannot be read, or contain NaN or infinity.
    """
    if isinstance(data, StreamData):
        return _first_batch(data, batch)
    if not isinstance(data, ArrayData | IndexedData):  # the lab's own data was checked before
        return read_few(data, batch)
    indices = torch.linspace(0, len(data) - 1, min(len(data), _SPREAD_EXAMPLES)).long()
    with seeded(0, 0):
        found = data.fetch(indices)
    bad = find_non_finite(found)
    if bad is not None and drop_corrupt and count_examples(found) == len(indices):
        return _finite_rows(found, len(indices))
    if bad is not None:
        where = f"index {indices[bad.row]}" if count_examples(found) == len(indices) else "a batch"
        raise UserError(
            f"{data.source}: {where} contains NaN or infinity; fill or drop such examples"
        )
    return found


def _finite_rows(found: Any, count: int) -> Any:
    """Return a batch without the examples that have NaN or infinity."""
    finite = torch.ones(count, dtype=torch.bool)
    for _, tensor in iter_tensors(found):
        if tensor.is_floating_point() and tensor.dim():
            finite &= tensor.reshape(count, -1).isfinite().all(1)
    return map_tensors(found, lambda tensor: tensor[finite] if tensor.dim() else tensor)


def _first_batch(stream: StreamData, batch: int) -> Any:
    found = stream.first_batch()
    if found is None:
        raise UserError(
            f"{stream.source} ended before its first batch of {batch:,} examples; "
            "pass more examples, or a smaller batch"
        )
    count_examples(found, "a batch")
    return found


def check_unit_range(data: UserData | Dataset, spread: Any, inputs: Any) -> None:
    """Raise UserError if values that a Bernoulli likelihood describes lie outside [0, 1].

    Args:
        data: Data of any kind. Arrays are checked completely, other data batch by batch too.
        spread: Examples from all over the data.
        inputs: Key, position or function that selects what `encode` takes from a batch.
    """
    if isinstance(data, ArrayData) and not callable(inputs):
        spread = data.tensors
    require_unit_range(inputs, spread)
    if isinstance(data, IndexedData | StreamData) and not callable(inputs):
        data.inspect = partial(require_unit_range, inputs)


def require_unit_range(inputs: Any, batch: Any) -> None:
    """Raise UserError if the input of a batch has values outside [0, 1]. Bytes become [0, 1].

    Args:
        inputs: Key, position or function that selects what `encode` takes from a batch.
        batch: Batch as the data returns it.
    """
    x: Tensor = select_input(batch, inputs)
    if x.dtype in (torch.uint8, torch.bool) or not x.numel():
        return
    low, high = (float(value) for value in torch.aminmax(x))
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise UserError(
            f"likelihood='bernoulli' needs data in [0, 1], got values from {low:.3g} to "
            f"{high:.3g}; rescale the data or pass likelihood='squared-error' or "
            "lab.Gaussian(learnt=True)"
        )


def check_validation(vae: CustomVAE, batch: Any, device: torch.device) -> None:
    """Raise UserError if the model cannot measure examples of the validation data.

    Args:
        vae: Model that was recognised with training data.
        batch: Examples of the validation data, on the host.
        device: Device of the model.
    """
    batch = cast_batch(map_tensors(batch, lambda tensor: tensor.to(device)), vae.dtype)
    try:
        with (
            explain_failures(vae.module, batch),
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            keep_buffers(vae.module),
        ):
            vae.losses(batch, Noise(device, vae.dtype))
    except UserError as error:
        raise UserError(f"the validation data does not fit the model: {error}") from error


def check_factors(factors: Any, data: UserData | Dataset) -> None:
    """Raise UserError if ground-truth factors are no table with a row per example.

    Args:
        factors: What was passed, or None.
        data: Data that they describe.
    """
    if factors is None:
        return
    try:
        shape = np.asarray(factors, dtype=np.float64).shape
    except (TypeError, ValueError) as error:
        raise UserError(f"factors must be a table of numbers ({error})") from None
    count = None if isinstance(data, StreamData) else len(data)
    if len(shape) != 2 or (count is not None and shape[0] != count):
        rows = "examples" if count is None else f"{count:,}"
        raise UserError(
            f"factors must have one row per example and one column per factor, "
            f"({rows}, factors), got {shape}"
        )
