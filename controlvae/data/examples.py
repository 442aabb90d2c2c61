"""Examples that live on the device, and the order in which training meets them."""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError


class Examples(Protocol):
    """A data set whose batches are made on the device it lives on."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example: (channels, height, width) for pictures."""
        ...

    @property
    def source(self) -> str:
        """Where it came from, in words."""
        ...

    @property
    def split(self) -> str:
        """Which part of the data these are, in words."""
        ...

    @property
    def factors(self) -> np.ndarray | None:
        """Class numbers of the ground truth, (count, factors), where known."""
        ...

    @property
    def factor_names(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Tensor:
        """The examples at these indices, float in [0, 1]: (n, *shape)."""
        ...

    def to(self, device: torch.device) -> "Examples": ...


@dataclass(frozen=True)
class BinaryImages:
    """Black and white pictures, one bit a pixel: all of 2D Shapes is 377 MB instead of 12 GB in floats."""

    bits: Tensor  # (count, pixels / 8) uint8, most significant bit first, rows one after another
    shape: tuple[int, int, int]
    source: str
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.bits)

    def batch(self, indices: Tensor) -> Tensor:
        rows = self.bits.index_select(0, indices.reshape(-1))
        shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=rows.device)
        pixels = rows.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and(1)
        return pixels.view(*indices.shape, *self.shape).float()

    def to(self, device: torch.device) -> "BinaryImages":
        return replace(self, bits=self.bits.to(device))


class Order:
    """Which examples are in the batch of a step: a fresh permutation every epoch, a function of (seed, step) alone.

    Nothing about the position needs saving, and a model meets the same batches alone or beside others.
    """

    def __init__(self, count: int, batch: int, seed: int) -> None:
        if count < batch:
            raise UserError(f"a batch of {batch} needs at least as many examples, the data set has {count}")
        self.count, self.batch, self.seed = count, batch, seed
        self.steps_per_epoch = count // batch  # the remainder is dropped, as in the released loaders
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, step: int) -> Tensor:
        """The indices of a step's batch, on the host: (batch,). Steps count from zero."""
        epoch, position = divmod(step, self.steps_per_epoch)
        permutation = self.permutation(epoch)
        return permutation[position * self.batch : (position + 1) * self.batch]

    def permutation(self, epoch: int) -> Tensor:
        """All indices of an epoch in their order: (count,)."""
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(stream_key(self.seed, epoch))
            self._permutation, self._epoch = torch.randperm(self.count, generator=generator), epoch
        return self._permutation


def stream_key(seed: int, number: int) -> int:
    """A well-mixed 63-bit key for one stream of a seed (splitmix64), so that neighbouring seeds share nothing."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & mask
    return (x ^ (x >> 31)) >> 1
