"""User-supplied data of three kinds: arrays in memory, data sets with indices, and streams."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from controlvae.errors import UserError
from controlvae.lab.config.custom import DataKind
from controlvae.lab.custom.batches import (
    as_tensors,
    count_examples,
    describe,
    iter_tensors,
    map_tensors,
)
from controlvae.lab.custom.failures import find_non_finite, summarise
from controlvae.lab.custom.seeding import seeded

_BATCH_BITS = 32  # an epoch has fewer batches than 2 to this power
Collate = Callable[[list[Any]], Any]
Inspect = Callable[[Any], None]


class ArrayData:
    """Tensors in memory whose first axis counts the examples.

    Args:
        tensors: Tensor, or tuple, list or dictionary of tensors of one length.
        source: What was passed, in words.

    Raises:
        UserError: If there is no example, or a value is NaN or infinite.
    """

    kind: DataKind = "arrays"

    def __init__(self, tensors: Any, source: str) -> None:
        self.tensors, self.source = as_tensors(tensors), source
        self.count = count_examples(self.tensors)
        _require_examples(self.count, source)
        bad = find_non_finite(self.tensors)
        if bad is not None:
            raise UserError(
                f"data{bad.path}[{bad.row}] contains NaN or infinity; fill or drop such examples"
            )

    def __len__(self) -> int:
        return self.count

    def fetch(self, indices: Tensor) -> Any:
        """Return the examples at these indices, where the tensors are."""
        return map_tensors(self.tensors, lambda t: t.index_select(0, indices.to(t.device)))

    def to(self, device: torch.device) -> "ArrayData":
        """Return the data on a device, or unchanged if it exceeds half the free memory."""
        size = sum(tensor.nbytes for _, tensor in iter_tensors(self.tensors))
        if device.type == "cuda" and size > torch.cuda.mem_get_info(device)[0] // 2:
            return self
        moved = object.__new__(ArrayData)
        moved.tensors = map_tensors(self.tensors, lambda tensor: tensor.to(device))
        moved.source, moved.count = self.source, self.count
        return moved

    def fingerprint(self) -> str:
        """Return a digest of shapes, types and three examples."""
        return _digest(f"{len(self)} {describe(self.tensors)}", self.fetch(_sample(len(self))))


class IndexedData:
    """A map-style data set: examples are fetched one by one and collated.

    Args:
        dataset: Object with `__len__` and `__getitem__`.
        source: What was passed, in words.
        collate: Function from a list of examples to a batch.
        workers: Processes that fetch batches. None chooses by the time that a batch takes.

    Raises:
        UserError: If there is no example.
    """

    kind: DataKind = "dataset"

    def __init__(
        self, dataset: Any, source: str, collate: Collate | None = None, workers: int | None = None
    ) -> None:
        self.dataset, self.source, self.workers = dataset, source, workers
        self.collate = collate or default_collate
        self.inspect: Inspect = _accept  # raises UserError if a batch is not usable
        _require_examples(len(dataset), source)

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, indices: Tensor) -> Any:
        """Return the examples at these indices on the host.

        Raises:
            UserError: If the data set raises, or its examples do not fit into one batch.
        """
        numbers = indices.tolist()
        examples = self._read(numbers)
        try:
            batch = as_tensors(self.collate(examples))
        except UserError:
            raise
        except Exception as error:
            raise UserError(self._explain_collate(numbers, examples, error)) from error
        self.inspect(batch)
        return batch

    def _read(self, numbers: list[int]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            try:
                return list(self.dataset.__getitems__(numbers))
            except Exception as error:
                if not hasattr(self.dataset, "__getitem__"):
                    raise UserError(f"{self.source}: {summarise(error)}") from error
        return [self._read_one(number) for number in numbers]

    def _read_one(self, number: int) -> Any:
        try:
            return self.dataset[number]
        except Exception as error:
            raise UserError(
                f"{self.source}: reading index {number} failed with {summarise(error)}; "
                "repair or leave out this example"
            ) from error

    def _explain_collate(self, numbers: list[int], examples: list[Any], error: Exception) -> str:
        """Return a line that names two examples of different structure, if there are some."""
        found = [describe(example) for example in examples]
        other = next((place for place, text in enumerate(found) if text != found[0]), None)
        if other is None:
            return (
                f"{self.source}: examples such as {found[0]} cannot be put into a batch "
                f"({summarise(error)}); return tensors, or pass a DataLoader with a collate_fn"
            )
        return (
            f"{self.source}: all examples must have one shape, but index {numbers[0]} is "
            f"{found[0]} and index {numbers[other]} is {found[other]}; crop or pad them, or pass "
            "a DataLoader with a collate_fn"
        )

    def to(self, device: torch.device) -> "IndexedData":
        """Return the data set itself: its batches go to the device one by one."""
        return self

    def fingerprint(self) -> str:
        """Return a digest of the number of examples and of three of them, transforms included."""
        with seeded(0, 0):
            return _digest(str(len(self)), self.fetch(_sample(len(self))))


class StreamData:
    """Batches without indices: a loader that is iterated as it is.

    Args:
        batches: Iterable of batches. Each pass over it is an epoch.
        source: What was passed, in words.
    """

    kind: DataKind = "stream"

    def __init__(self, batches: Iterable[Any], source: str) -> None:
        self.batches, self.source = batches, source
        self.restarts = not isinstance(batches, Iterator)
        self.inspect: Inspect = _accept  # raises UserError if a batch is not usable
        self.whole_batches = False  # a loader passes on what its data set returns
        self._first: Any = None  # batch of a stream that can be read only once

    def epoch(self, seed: int, number: int) -> Iterator[Any]:
        """Yield the batches of one epoch, each with random numbers seeded by (seed, epoch, batch).

        Args:
            seed: Seed of the run.
            number: Number of the epoch, counted from zero.
        """
        generator = getattr(self.batches, "generator", None)
        with seeded(seed, number << _BATCH_BITS) as key:
            if isinstance(generator, torch.Generator):
                generator.manual_seed(key)
            if hasattr(getattr(self.batches, "sampler", None), "set_epoch"):
                self.batches.sampler.set_epoch(number)  # type: ignore[attr-defined]
            iterator = iter(self.batches)
        for position in itertools.count(1):
            # Samplers and transforms draw while the batch is fetched, in this process.
            with seeded(seed, (number << _BATCH_BITS) + position):
                batch = self._read(iterator, f"batch {position:,} of epoch {number + 1:,}")
            if batch is None:
                return
            yield batch

    def _read(self, iterator: Iterator[Any], name: str) -> Any:
        """Return the next batch as finite tensors, or None at the end."""
        try:
            batch = next(iterator, None)
        except Exception as error:
            raise UserError(
                f"{self.source}: reading {name} failed with {summarise(error)}; "
                "repair or leave out such examples"
            ) from error
        batch = as_tensors(batch)
        bad = find_non_finite(batch)
        if bad is not None:
            raise UserError(
                f"{self.source}: {name} contains NaN or infinity at {bad.path}[{bad.row}]; "
                "fill or drop such examples"
            )
        if batch is not None:
            self.inspect(batch)
        return batch

    def first_batch(self) -> Any:
        """Return the first batch of a fixed epoch, or None if the stream is empty.

        That of a stream that can be read only once is put back, and kept for evaluation.
        """
        if self.restarts:
            return next(self.epoch(0, 0), None)
        if self._first is None and isinstance(self.batches, Iterator):
            self._first = self._read(self.batches, "the first batch")
            if self._first is not None:
                self.batches = itertools.chain([self._first], self.batches)
        return self._first

    def _kept(self) -> list[Any]:
        first = self.first_batch()
        return [] if first is None else [first]

    def to(self, device: torch.device) -> "StreamData":
        """Return the stream itself: its batches go to the device one by one."""
        return self

    def fingerprint(self) -> str:
        """Return an empty text: a stream cannot be compared without reading it."""
        return ""

    def head(self, count: int) -> ArrayData:
        """Return the first examples of a fixed epoch as arrays, for evaluation.

        A stream that can be read only once has its first batch.

        Args:
            count: Number of examples, or fewer if the epoch is shorter.

        Raises:
            UserError: If the stream has no example.
        """
        batches = self.epoch(0, 0) if self.restarts else iter(self._kept())
        parts: list[Any] = []
        found = 0
        for batch in batches:
            parts.append(batch)
            found += count_examples(batch, "a batch")
            if found >= count:
                break
        _require_examples(found, self.source)
        return ArrayData(
            _concatenate(parts, count), f"the first {min(found, count):,} of {self.source}"
        )


UserData = ArrayData | IndexedData | StreamData


def loader_of_examples(dataset: Any, batch: int, workers: int | None) -> DataLoader[Any]:
    """Return a loader of batches over an iterable of examples.

    Args:
        dataset: A `torch.utils.data.IterableDataset`.
        batch: Number of examples in a batch. An incomplete last batch is dropped.
        workers: Processes that read examples.
    """
    return DataLoader(dataset, batch_size=batch, drop_last=True, num_workers=workers or 0)


def _accept(batch: Any) -> None:
    """Accept any batch."""


def _require_examples(count: int, source: str) -> None:
    if count == 0:
        raise UserError(f"the data has no examples: {source} has length 0")


def _sample(count: int) -> Tensor:
    return torch.tensor([0, count // 2, count - 1])


def _digest(label: str, batch: Any) -> str:
    digest = hashlib.sha256(label.encode())
    for path, tensor in iter_tensors(batch):
        digest.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _concatenate(parts: Sequence[Any], count: int) -> Any:
    """Join batches of one structure along the examples, and keep the first `count`."""
    columns = [[tensor for _, tensor in iter_tensors(part)] for part in parts]
    joined = iter([torch.cat(list(column))[:count] for column in zip(*columns, strict=True)])
    return map_tensors(parts[0], lambda tensor: next(joined))
