"""Where a captured step finds its pictures: all of them on the device, or the next few streamed to it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.lab.data.dataset import BatchOrder, BinaryImages, ImageDataset
from controlvae.lab.engines.rng import draw_batch_indices
from controlvae.lab.engines.stacked import ops as products

BLOCK_STEPS = 256  # steps whose batch numbers and noise are prepared at once
_STREAM_BYTES = 256 * 2**20  # on the device for one block of streamed pictures; there are two


class Resident:
    """Pictures that live on the device: a block is the numbers of those its steps meet."""

    def __init__(
        self, examples: ImageDataset, orders: Sequence[list[BatchOrder]], device: torch.device
    ) -> None:
        self.examples = examples
        self.orders = orders
        self.device = device
        self.block_steps = BLOCK_STEPS
        shape = (self.block_steps, len(orders), len(orders[0]), orders[0][0].batch)
        self.indices = torch.zeros(
            shape, dtype=torch.int64, device=device
        )  # (steps, models, batches, batch)
        self.rows = examples.rows
        self._prepared: tuple[int, Tensor] | None = None

    def pictures(self, position: Tensor, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A step's pictures for the network, and as the likelihood wants them, exact: (models, batch, h, w, channels).

        `position` is a device number, the step within the block; `batch` says which of a step's batches.
        """
        wanted = (self.rows, self.indices[:, :, batch], position, self.examples.shape)
        if isinstance(self.examples, BinaryImages):
            x = products.unpack(*wanted, dtype)
            return x, x
        return products.unpack_bytes(*wanted, dtype), products.unpack_bytes(*wanted, torch.uint8)

    def prepare(self, block: int) -> None:
        """The host's share of a block, done while the device is busy with the one before."""
        if self._prepared is None or self._prepared[0] != block:
            self._prepared = (block, self._pinned(self._numbers(block)))

    def load(self, block: int) -> None:
        """Makes a block the current one."""
        self.prepare(block)
        assert self._prepared is not None
        self.indices.copy_(self._prepared[1], non_blocking=True)

    def _numbers(self, block: int) -> Tensor:
        each = [
            draw_batch_indices(own, block * self.block_steps, self.block_steps)
            for own in self.orders
        ]
        return torch.stack(each, dim=1)

    def _pinned(self, host: Tensor) -> Tensor:
        return host.pin_memory() if self.device.type == "cuda" else host


class Streamed(Resident):
    """Pictures that stay on the host, in memory or memory-mapped: a block's own travel ahead of it.

    The device holds two blocks. While it works on one, the host gathers the next into pinned memory and a stream of its
    own copies it over.
    """

    def __init__(
        self, examples: ImageDataset, orders: Sequence[list[BatchOrder]], device: torch.device
    ) -> None:
        super().__init__(examples, orders, device)
        step = self.indices[0].numel()
        self.block_steps = max(
            1, min(BLOCK_STEPS, _STREAM_BYTES // (step * examples.rows.shape[1]))
        )
        count = self.block_steps * step
        self.rows = torch.empty(2 * count, examples.rows.shape[1], dtype=torch.uint8, device=device)
        self.halves = self.rows.split(count)
        self.indices = self.indices[: self.block_steps].clone()
        within = torch.arange(count, device=device).view_as(self.indices)
        self.numbers = (within, within + count)
        self.host = [self._pinned(torch.empty_like(half, device="cpu")) for half in self.halves]
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.arrived = [torch.cuda.Event() if self.copies else None for _ in range(2)]
        self._free = (
            torch.cuda.Event() if self.copies else None
        )  # the half not in use is read by nothing queued
        self._waiting = -1

    def prepare(self, block: int) -> None:
        if self._waiting == block:
            return
        half = block % 2
        arrived = self.arrived[half]
        if arrived is not None:
            arrived.synchronize()  # the copy of two blocks ago has left this half of the host's memory
        torch.index_select(
            self.examples.rows, 0, self._numbers(block).flatten(), out=self.host[half]
        )
        if self.copies is None:
            self.halves[half].copy_(self.host[half])
        else:
            self.copies.wait_event(self._free)  # type: ignore[arg-type]
            with torch.cuda.stream(self.copies):
                self.halves[half].copy_(self.host[half], non_blocking=True)
                arrived.record(self.copies)  # type: ignore[union-attr]
        self._waiting = block

    def load(self, block: int) -> None:
        if (
            self._free is not None
        ):  # all queued so far: once it is done, the other half may be overwritten
            self._free.record(torch.cuda.current_stream(self.device))
        self.prepare(block)
        arrived = self.arrived[block % 2]
        if arrived is not None:
            torch.cuda.current_stream(self.device).wait_event(arrived)
        self.indices.copy_(self.numbers[block % 2])


def make_feed(
    examples: ImageDataset, orders: Sequence[list[BatchOrder]], device: torch.device
) -> Resident:
    """Resident where the pictures are on the device, streamed where they are not."""
    kind = Resident if examples.rows.device.type == device.type else Streamed
    return kind(examples, orders, device)
