"""Batches of any structure: a tensor, or tuples, lists and dictionaries of tensors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError

# Names under which data sets keep what a model encodes.
_INPUT_KEYS = (
    "x",
    "image",
    "images",
    "img",
    "pixel_values",
    "input",
    "inputs",
    "input_ids",
    "data",
)

_MAX_DESCRIBED = 6  # levels of a structure in a message


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the batch with `function` applied to each tensor. Other values stay as they are.

    Args:
        batch: Batch of any structure.
        function: Function of a tensor.
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch


def iter_tensors(batch: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor of a batch with its place, such as `["image"]` or `[0]`."""
    if isinstance(batch, Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from iter_tensors(value, f"{path}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for number, value in enumerate(batch):
            yield from iter_tensors(value, f"{path}[{number}]")


def as_tensors(data: Any) -> Any:
    """Return the data with its NumPy arrays, and lists of numbers, as tensors."""
    if isinstance(data, np.ndarray):
        if data.dtype == object or data.dtype.kind in "SUO":
            raise UserError(
                f"data must be numeric, got an array of {data.dtype}; "
                "encode text as token ids and categories as class numbers"
            )
        return torch.from_numpy(np.ascontiguousarray(data))
    if isinstance(data, Mapping):
        return {key: as_tensors(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(as_tensors(value) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(as_tensors(value) for value in data)
    return data


def count_examples(batch: Any, what: str = "data") -> int:
    """Return the common length of all tensors of a batch.

    Args:
        batch: Batch of any structure.
        what: Name of the batch in error messages.

    Raises:
        UserError: If there is no tensor, or lengths differ.
    """
    tensors = list(iter_tensors(batch))
    if not tensors:
        raise UserError(f"{what} must contain tensors, got {describe(batch)}")
    for path, tensor in tensors:
        if tensor.dim() == 0:
            raise UserError(
                f"{what}{path} is a single number; every tensor needs a first axis over examples"
            )
    lengths = {path: len(tensor) for path, tensor in tensors}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{what}{path} has {length:,}" for path, length in lengths.items())
        raise UserError(f"all tensors must have the same number of examples, but {sizes}")
    return next(iter(lengths.values()))


def select_input(batch: Any, chosen: Any = None) -> Any:
    """Return the part of a batch that `encode` takes.

    Args:
        batch: Batch of any structure.
        chosen: Key, position or function that selects it. By default a tensor is taken as it is, a
            tuple by its first entry, and a dictionary by the usual names of images and tokens.

    Raises:
        UserError: If the choice is not possible.
    """
    if callable(chosen):
        try:
            return chosen(batch)
        except Exception as error:
            raise UserError(
                f"inputs failed with {type(error).__name__} on a batch, which is "
                f"{describe(batch)}; it must return what encode takes"
            ) from error
    if chosen is not None:
        try:
            if isinstance(batch, Tensor):
                raise KeyError(chosen)
            return batch[chosen]
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"inputs={chosen!r} is not in a batch, which is {describe(batch)}"
            ) from None
    if isinstance(batch, Mapping):
        keys = [key for key in _INPUT_KEYS if key in batch] or list(batch)[: len(batch) == 1]
        if not keys:
            names = ", ".join(map(repr, batch))
            raise UserError(
                f"a batch has the keys {names}; say which one the model encodes: inputs=KEY"
            )
        return batch[keys[0]]
    if isinstance(batch, list | tuple):
        if not batch:
            raise UserError("a batch is empty; the data set must return tensors")
        return batch[0]
    return batch


def describe(value: Any, depth: int = 0) -> str:
    """Return the structure of a batch or of a model's output in words, up to a depth."""
    if depth > _MAX_DESCRIBED:
        return "..."
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array {value.shape}"
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{key!r}: {describe(entry, depth + 1)}" for key, entry in list(value.items())[:6]
        )
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(describe(entry, depth + 1) for entry in value[:6])})"
    is_plain = isinstance(value, int | float | str | bool) or value is None
    return repr(value) if is_plain else f"a {type(value).__name__}"


def cast_batch(batch: Any, dtype: torch.dtype) -> Any:
    """Return a batch in the floating type of a model. Bytes are pixels and become [0, 1].

    Args:
        batch: Batch of any structure.
        dtype: Type of the model's weights.
    """

    def cast(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.uint8:
            return tensor.to(dtype) / 255
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_tensors(batch, cast)
