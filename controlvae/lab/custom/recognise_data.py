"""Recognising what a user passed as data."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from controlvae.errors import UserError
from controlvae.lab.config import DataSettings, Images
from controlvae.lab.custom.batches import describe
from controlvae.lab.custom.seeding import seeded
from controlvae.lab.custom.sources import (
    ArrayData,
    IndexedData,
    StreamData,
    UserData,
    loader_of_examples,
)
from controlvae.lab.data.dataset import Dataset, ImageDataset
from controlvae.lab.data.registry import load_dataset

DEFAULT_BATCH = 64
_MAX_NESTING = 100  # of dictionaries and tuples of arrays
_ACCEPTED = (
    "arrays, tensors, a torch Dataset or DataLoader, a Hugging Face dataset, "
    "or the path of a folder of images"
)


class Recognised(NamedTuple):
    """Data in a form that the lab can train on, and the number of examples in a batch."""

    data: UserData | Dataset
    batch: int
    settings: DataSettings | None = None  # of a data set that the lab can load again


def recognise_data(
    data: Any,
    batch: int | None = None,
    *,
    workers: int | None = None,
    cache: bool = False,
    root: Path | None = None,
) -> Recognised:
    """Return data of any accepted form as a source of batches.

    Args:
        data: Arrays, tensors, a `Dataset`, a `DataLoader`, a Hugging Face dataset, a data frame, a
            path, or settings such as `CIFAR10(size=32)`. Tuples and dictionaries of arrays are
            columns; a list holds examples.
        batch: Number of examples in a batch. The default is that of a loader, else 64.
        workers: Processes that fetch batches.
        cache: Keep a data set in memory after reading it once. Its transforms run once.
        root: Data folder that is searched first.

    Raises:
        UserError: If the data has another form, or is empty.
    """
    if isinstance(data, str | Path):
        data = Images(str(data), size=None)
    if isinstance(data, DataSettings):
        return Recognised(load_dataset(data, root), batch or DEFAULT_BATCH, data)
    if isinstance(data, ImageDataset):
        return Recognised(data, batch or DEFAULT_BATCH)
    if isinstance(data, DataLoader):
        return _recognise_loader(data, batch, workers, cache)
    batch = DEFAULT_BATCH if batch is None else batch
    if batch < 1:
        raise UserError(f"batch must be at least 1, got {batch}")
    found = _recognise_arrays(data) or _recognise_dataset(data, batch, workers)
    if cache and isinstance(found, IndexedData):
        found = read_into_memory(found)
    return Recognised(found, batch)


def read_into_memory(data: IndexedData) -> ArrayData:
    """Return all examples of a data set as arrays. Transforms run once, with fixed seeds."""
    with seeded(0, 0):
        return ArrayData(data.fetch(torch.arange(len(data))), f"{data.source}, in memory")


def _recognise_arrays(data: Any) -> ArrayData | None:
    """Return arrays, tensors, data frames and collections of them, or None."""
    if isinstance(data, TensorDataset):
        return ArrayData(data.tensors, f"TensorDataset of {describe(data.tensors)}")
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):  # pandas, polars
        values = data.to_numpy()
        if values.dtype == object:
            raise UserError(
                "a data frame must be numeric; encode its text columns as class numbers first"
            )
        return ArrayData(values.astype(np.float32), f"a data frame of {values.shape}")
    if _is_hugging_face(data) and hasattr(data, "with_format"):
        return _read_numeric_columns(data)
    if _are_arrays(data):
        return ArrayData(data, describe(data))
    return None


def _are_arrays(data: Any, depth: int = 0) -> bool:
    if depth > _MAX_NESTING:
        return False
    if isinstance(data, Tensor | np.ndarray):
        return True
    values = data.values() if isinstance(data, Mapping) else data
    if not isinstance(data, Mapping | tuple) or not len(data):  # a list holds examples
        return False
    return all(_are_arrays(value, depth + 1) for value in values)


def _read_numeric_columns(data: Any) -> ArrayData | None:
    """Return a Hugging Face data set without transforms as arrays, if its columns are numeric."""
    if (
        not hasattr(data, "__len__")
        or (getattr(data, "format", None) or {}).get("type") == "custom"
    ):
        return None
    if not len(data):
        raise UserError("the data has no examples: the Hugging Face data set has length 0")
    columns = data.with_format("numpy")[:]
    numeric = {
        name: np.asarray(column)
        for name, column in columns.items()
        if np.asarray(column).dtype.kind in "biuf"
    }
    if len(numeric) < len(columns):
        return None
    return ArrayData(numeric, f"a Hugging Face data set with {', '.join(columns)}")


def _recognise_dataset(data: Any, batch: int, workers: int | None) -> UserData:
    name = type(data).__name__
    if isinstance(data, IterableDataset) or (
        _is_hugging_face(data) and not hasattr(data, "__len__")
    ):
        return StreamData(loader_of_examples(data, batch, workers), f"{name} (a stream)")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return IndexedData(data, f"{name} with {len(data):,} examples", workers=workers)
    if isinstance(data, Iterable) and not isinstance(data, Mapping | bytes):
        return StreamData(data, f"{name} (a stream of batches)")
    raise UserError(f"dataset must be {_ACCEPTED}, got {describe(data)}")


def _recognise_loader(
    loader: "DataLoader[Any]", batch: int | None, workers: int | None, cache: bool
) -> Recognised:
    """Return the data of a loader.

    The lab draws the batches itself where the loader's own order is plain, because it can then
    resume in the middle of an epoch. A loader with a custom sampler is iterated as it is.
    """
    name = f"DataLoader of {type(loader.dataset).__name__}"
    plain = (
        isinstance(loader.sampler, RandomSampler | SequentialSampler)
        and type(loader.batch_sampler) is BatchSampler
        and not getattr(loader.sampler, "replacement", False)
    )
    if loader.batch_size is not None and batch not in (None, loader.batch_size):
        raise UserError(
            f"the DataLoader has batches of {loader.batch_size}, but batch={batch} was passed; "
            "leave one of them out"
        )
    if not plain or loader.batch_size is None:
        stream = StreamData(loader, name)
        stream.whole_batches = loader.batch_sampler is None
        return Recognised(stream, loader.batch_size or batch or DEFAULT_BATCH)
    arrays = _recognise_arrays(loader.dataset) if loader.collate_fn is default_collate else None
    data: UserData = arrays or IndexedData(
        loader.dataset,
        f"{name} with {len(loader.dataset):,} examples",  # type: ignore[arg-type]
        loader.collate_fn,
        loader.num_workers if workers is None else workers,
    )
    if cache and isinstance(data, IndexedData):
        data = read_into_memory(data)
    return Recognised(data, loader.batch_size)


def _is_hugging_face(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets"
