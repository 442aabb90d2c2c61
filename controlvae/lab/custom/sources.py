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
from controlvae.lab.custom.seeding import seeded

_BATCH_BITS = 32  # an epoch has fewer batches than 2 to this power
Collate = Callable[[list[Any]], Any]


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
        for path, tensor in iter_tensors(self.tensors):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                rows = torch.isfinite(tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None])
                first = int((~rows.all(1)).nonzero()[0, 0])
                raise UserError(
                    f"data{path}[{first}] contains NaN or infinity; fill or drop such examples"
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
        _require_examples(len(dataset), source)

    def __len__(self) -> int:
        return len(self.dataset)

    def fetch(self, indices: Tensor) -> Any:
        """Return the examples at these indices on the host."""
        numbers = indices.tolist()
        if hasattr(self.dataset, "__getitems__"):
            examples = self.dataset.__getitems__(numbers)
        else:
            examples = [self.dataset[number] for number in numbers]
        return as_tensors(self.collate(examples))

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

    def epoch(self, seed: int, number: int) -> Iterator[Any]:
        """Yield the batches of one epoch, each with random numbers of its own (seed, epoch, batch).

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
                batch = next(iterator, None)
            if batch is None:
                return
            yield as_tensors(batch)

    def to(self, device: torch.device) -> "StreamData":
        """Return the stream itself: its batches go to the device one by one."""
        return self

    def fingerprint(self) -> str:
        """Return an empty text: a stream cannot be compared without reading it."""
        return ""

    def head(self, count: int) -> ArrayData:
        """Return the first examples of a fixed epoch as arrays, for evaluation.

        Args:
            count: Number of examples, or fewer if the epoch is shorter.

        Raises:
            UserError: If the stream has ended, or cannot be started again.
        """
        if not self.restarts:
            raise UserError(
                f"{self.source} can be read only once, so nothing is left to evaluate; "
                "pass validation=DATA, or a data set that can be iterated again"
            )
        parts: list[Any] = []
        found = 0
        for batch in self.epoch(0, 0):
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
