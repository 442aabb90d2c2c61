"""Feeds: the batch of each step on the device, from data of any kind.

A feed is a function of (seed, step), so that a resumed run sees the batches of an unbroken one.
"""

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from controlvae.errors import RunError, UserError
from controlvae.lab.custom.batches import count_examples, iter_tensors, map_tensors
from controlvae.lab.custom.failures import find_non_finite
from controlvae.lab.custom.noise import uses_python_randomness
from controlvae.lab.custom.seeding import seeded
from controlvae.lab.custom.sources import ArrayData, IndexedData, StreamData, UserData
from controlvae.lab.data.batch_order import BatchOrder
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.ranks.share import BatchShare

# A batch that takes longer to fetch is fetched by worker processes.
_MAX_FETCH_SECONDS = {"cuda": 0.0005, "cpu": 0.005}
_MAX_WORKERS = 8


class Feed(Protocol):
    """Batches of a run, step by step."""

    def start(self, first: int, steps: int) -> None:
        """Prepare the batches of steps `first` to `first + steps - 1`."""
        ...

    def batch(self, step: int) -> Any:
        """Return the batch of a step on the device. Steps are requested in order."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold of the position in the data."""
        ...

    def restore(self, step: int, state: dict[str, Tensor]) -> None:
        """Continue at a step with a saved position."""
        ...


def make_feed(
    data: UserData | Dataset,
    batch: int,
    seed: int,
    device: torch.device,
    subset: Tensor | None = None,
    share: BatchShare | None = None,
) -> Feed:
    """Return the feed of a run.

    Args:
        data: Data of any kind.
        batch: Number of examples in a batch.
        seed: Seed of the run.
        device: Device of the batches.
        subset: Indices of the training examples. None uses all.
        share: Rows of each batch that this process computes. None computes all of them.

    Raises:
        UserError: If there are fewer examples than a batch needs.
    """
    share = share or BatchShare()
    share.set_batch(batch)
    if isinstance(data, StreamData):
        if subset is not None:
            raise UserError(
                "a stream cannot be split; pass validation=DATA, a data set for validation"
            )
        return StreamFeed(data, seed, device, share)
    count = len(data) if subset is None else len(subset)
    if count < batch:
        examples = "is only 1 example" if count == 1 else f"are only {count:,} examples"
        raise UserError(
            f"a batch has {batch:,} examples, but there {examples} to train on; "
            f"make the batch {count:,} or smaller"
        )
    order = BatchOrder(len(data), batch, seed, 0, subset)
    if isinstance(data, IndexedData):
        return LoaderFeed(data, order, device, share)
    return ArrayFeed(data, order, device, share)


class ArrayFeed:
    """Batches gathered from memory by index, on the device where the data is.

    Args:
        data: Arrays, or a data set of the lab.
        order: Order of the batches.
        device: Device of the batches.
        share: Rows of each batch that this process computes.
    """

    def __init__(
        self,
        data: ArrayData | Dataset,
        order: BatchOrder,
        device: torch.device,
        share: BatchShare,
    ) -> None:
        self.data, self.order, self.device, self.share = data, order, device, share
        self._first, self.indices = 0, torch.empty(0, order.batch, dtype=torch.int64)

    @property
    def is_resident(self) -> bool:
        """True if the data is on the device, so that a captured step may gather from it."""
        if isinstance(self.data, ArrayData):
            return all(t.device == self.device for _, t in iter_tensors(self.data.tensors))
        rows = getattr(self.data, "rows", None)
        return isinstance(rows, Tensor) and rows.device == self.device

    def start(self, first: int, steps: int) -> None:
        """Draw the indices of all steps at once. See `Feed`."""
        indices = torch.stack([self.order.indices(first + step) for step in range(steps)])
        self._first, self.indices = first, indices.to(self.device)

    def batch(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.gather(self.indices[step - self._first][self.share.rows])

    def gather(self, indices: Tensor) -> Any:
        """Return the examples at these indices, on the device."""
        if isinstance(self.data, ArrayData):
            found = self.data.fetch(indices)
            return map_tensors(found, lambda tensor: tensor.to(self.device, non_blocking=True))
        return self.data.batch(indices)

    def state(self) -> dict[str, Tensor]:
        """Return nothing: the position is the step."""
        return {}

    def restore(self, step: int, state: dict[str, Tensor]) -> None:
        """Do nothing: the position is the step."""


class _SeededBatches(torch.utils.data.Dataset[Any]):
    """Data set whose examples are the whole batches of a run, for the workers of a loader.

    Random transforms are seeded by (seed, step), whichever worker fetches a batch.
    """

    def __init__(self, data: IndexedData, seed: int) -> None:
        self.data, self.seed = data, seed

    def __getitem__(self, item: tuple[int, Tensor]) -> Any:
        step, indices = item
        try:
            with seeded(self.seed, step):
                return self.data.fetch(indices)
        except UserError as error:  # a worker would send it as a text with a traceback
            return _Failure(str(error))


class _Failure(NamedTuple):
    """Line of a batch that could not be read, in place of the batch."""

    line: str


class _StepSampler(torch.utils.data.Sampler[Any]):
    """Sampler of steps from `first` on, each with indices of its batch, without end."""

    def __init__(self, order: BatchOrder, first: int, rows: slice) -> None:
        self.order, self.first, self.rows = order, first, rows

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        step = self.first
        while True:
            yield step, self.order.indices(step)[self.rows]
            step += 1


class LoaderFeed:
    """Batches fetched from a data set, by worker processes if that takes long.

    Args:
        data: Data set with indices.
        order: Order of the batches.
        device: Device of the batches.
        share: Rows of each batch that this process computes. They are the only ones that it reads,
            unless reading draws random numbers: those of an example depend on the ones before it.
    """

    def __init__(
        self, data: IndexedData, order: BatchOrder, device: torch.device, share: BatchShare
    ) -> None:
        self.data, self.order, self.device, self.share = data, order, device, share
        self.workers = _choose_workers(data, order, device)
        self._reads_all = not share.is_whole and _draws_while_reading(data, order)
        self._position, self._iterator = -1, iter(())
        self._reader: Iterator[Any] = iter(())

    def start(self, first: int, steps: int) -> None:
        """Start the loader at a step, unless it is there already. See `Feed`."""
        if first == self._position:
            return
        self.close()
        loader: DataLoader[Any] = DataLoader(
            _SeededBatches(self.data, self.order.seed),
            batch_size=None,
            sampler=_StepSampler(
                self.order, first, slice(None) if self._reads_all else self.share.rows
            ),
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=2 if self.workers else None,
        )
        with seeded(self.order.seed, 0):  # a loader draws a base seed for its workers
            self._reader = iter(loader)
        self._iterator = _ahead(self._reader, self.device)
        self._position = first

    def batch(self, step: int) -> Any:
        """Return the batch of a step."""
        try:
            batch: Any = next(self._iterator)
        except (EOFError, OSError) as error:  # of a connection: the data's own are a `_Failure`
            name = type(error).__name__
            raise RuntimeError(f"DataLoader worker stopped sending batches: {name}") from None
        if isinstance(batch, _Failure):
            raise UserError(batch.line)
        self._position = step + 1
        return take_rows(batch, self.share.rows) if self._reads_all else batch

    def state(self) -> dict[str, Tensor]:
        """Return nothing: the position is the step."""
        return {}

    def close(self) -> None:
        """End the worker processes, even if an exception keeps a reference to their loader."""
        reader, self._reader = self._reader, iter(())
        self._position, self._iterator = -1, iter(())
        getattr(reader, "_shutdown_workers", lambda: None)()

    def find_bad_example(self, step: int) -> str:
        """Return words that name an example of a step with NaN or infinity, or an empty text."""
        indices = self.order.indices(step)
        with seeded(self.order.seed, step):
            bad = find_non_finite(self.data.fetch(indices))
        if bad is None:
            return ""
        where = f"index {indices[bad.row]}" if bad.row < len(indices) else "a batch"
        return f"{where} of the data contains NaN or infinity"

    def restore(self, step: int, state: dict[str, Tensor]) -> None:
        """Forget the position. The next `start` sets it."""
        self._position = -1


class StreamFeed:
    """Batches of a stream, epoch after epoch. A checkpoint holds the epoch and the batch in it.

    Args:
        data: Stream of batches.
        seed: Seed of the run.
        device: Device of the batches.
        share: Rows of each batch that this process computes. Every process reads the stream.
    """

    def __init__(
        self, data: StreamData, seed: int, device: torch.device, share: BatchShare
    ) -> None:
        self.data, self.seed, self.device, self.share = data, seed, device, share
        self.epoch = self.position = 0
        self._iterator: Iterator[Any] | None = None

    def start(self, first: int, steps: int) -> None:
        """Open the stream at its position. See `Feed`."""
        if self._iterator is None:
            self._iterator = self._open(self.position)

    def batch(self, step: int) -> Any:
        """Return the next batch of the stream, from a new epoch if this one has ended."""
        assert self._iterator is not None
        batch = next(self._iterator, None)
        if batch is None:
            self._require_restart(step)
            self.epoch, self.position = self.epoch + 1, 0
            self._iterator = self._open(0)
            batch = next(self._iterator, None)
            if batch is None:
                raise RunError(f"{self.data.source} has no batch at all at step {step:,}")
        self.position += 1
        rows = self.share.set_batch(count_examples(batch, "a batch"))
        return batch if self.share.is_whole else take_rows(batch, rows)

    def state(self) -> dict[str, Tensor]:
        """Return the epoch and the number of batches taken from it."""
        return {"epoch": torch.tensor(self.epoch), "position": torch.tensor(self.position)}

    def restore(self, step: int, state: dict[str, Tensor]) -> None:
        """Continue behind the batches that were taken from the epoch.

        Args:
            step: Step to continue from.
            state: Epoch and position, as `state` returned them.
        """
        if step and not self.data.restarts:
            raise UserError(
                f"{self.data.source} cannot be started again, so the run cannot be resumed exactly;"
                " pass an object whose iter() starts from the beginning"
            )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])
        self._iterator = None

    def close(self) -> None:
        """End the worker processes of the loader."""
        self._iterator = None

    def _open(self, skip: int) -> Iterator[Any]:
        batches = self.data.epoch(self.seed, self.epoch)
        for _ in range(skip):  # a stream has no index: what was trained on is read again
            next(batches, None)
        return _ahead(batches, self.device)

    def _require_restart(self, step: int) -> None:
        if not self.data.restarts:
            raise RunError(
                f"the data ended before step {step + 1:,}: {self.data.source} gave "
                f"{self.position:,} batches and cannot be started again; pass a Dataset or a "
                "DataLoader, or train for fewer steps"
            )


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on the device, copying the next one while the device works on this one."""
    if device.type != "cuda":
        yield from batches
        return
    stream = torch.cuda.Stream(device)

    def move(batch: Any) -> Any:
        with torch.cuda.stream(stream):
            return map_tensors(batch, lambda tensor: _pin(tensor).to(device, non_blocking=True))

    waiting = None
    for batch in batches:
        following = move(batch)
        if waiting is not None:
            yield _hand_over(waiting, stream)
        waiting = following
    if waiting is not None:
        yield _hand_over(waiting, stream)


def _pin(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()


def _hand_over(batch: Any, stream: "torch.cuda.Stream") -> Any:
    """Let the current stream wait for a copy, and keep its memory until that stream is done."""
    current = torch.cuda.current_stream(stream.device)
    current.wait_stream(stream)

    def keep(tensor: Tensor) -> Tensor:
        tensor.record_stream(current)
        return tensor

    return map_tensors(batch, keep)


def take_rows(batch: Any, rows: slice) -> Any:
    """Return some rows of every tensor of a batch."""
    return map_tensors(batch, lambda tensor: tensor[rows])


def _draws_while_reading(data: IndexedData, order: BatchOrder) -> bool:
    """Return whether reading a batch draws random numbers, such as those of an augmentation."""
    with seeded(order.seed, 0):
        before = torch.default_generator.get_state()
        in_python = uses_python_randomness(lambda: data.fetch(order.indices(0)))
        return in_python or not before.equal(torch.default_generator.get_state())


def _choose_workers(data: IndexedData, order: BatchOrder, device: torch.device) -> int:
    """Return the number of worker processes: those requested, or enough if fetching is slow."""
    if data.workers is not None:
        return data.workers
    with seeded(order.seed, 0):
        before = time.perf_counter()
        data.fetch(order.indices(0))
        elapsed = time.perf_counter() - before
    if elapsed < _MAX_FETCH_SECONDS[device.type]:
        return 0
    return max(1, min(_MAX_WORKERS, (os.cpu_count() or 1) - 1))
