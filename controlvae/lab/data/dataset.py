"""Examples that live on the device, and the order in which training meets them."""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from controlvae.errors import UserError


class Dataset(Protocol):
    """A data set whose batches are made on the device it lives on."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example: (channels, height, width) for pictures."""
        ...

    @property
    def eval_batch_size(self) -> int:
        """How many of them are measured at once."""
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

    @property
    def unordered(self) -> tuple[str, ...]:
        """The factors that are no quantities, such as a shape: which of their classes comes first means nothing."""
        ...

    @property
    def levels(self) -> Mapping[str, np.ndarray]:
        """By factor, the number that each of its classes stands for, where that is not the class number itself."""
        ...

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Any:
        """The examples at these indices, as `encode` takes them; pictures are float in [0, 1], (n, *shape)."""
        ...

    def batches(self, indices: Tensor) -> Iterator[Any]:
        """The examples at these indices in turn, as many at once as measuring takes, in an order of their own."""
        ...

    def order(
        self, batch: int, seed: int, stream: int = 0, among: Tensor | None = None
    ) -> "BatchOrder":
        """In which training meets them, or those of them that it is `among`."""
        ...

    def to(self, device: torch.device) -> "Dataset": ...

    def fingerprint(self) -> str:
        """Tells these examples in this order from others, by a few of them."""
        ...

    @property
    def metadata_file(self) -> str:
        """The name of the file that `kept` goes into."""
        ...

    def metadata(self) -> str:
        """What a model needs of them to work without them, as JSON, to be kept with it."""
        ...


@dataclass(frozen=True)
class ImageDataset(ABC):
    """Pictures as rows of bytes, in memory or memory-mapped: decoded a batch at a time."""

    rows: Tensor  # (count, bytes of one picture) uint8
    shape: tuple[int, int, int]
    source: str
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    levels: Mapping[str, np.ndarray] = field(default_factory=dict)
    eval_batch_size: ClassVar[int] = 500
    metadata_file: ClassVar[str] = "pictures.json"

    def __len__(self) -> int:
        return len(self.rows)

    def fingerprint(self) -> str:
        return digest(f"{len(self)} {self.shape}", self.rows)

    @abstractmethod
    def decode(self, rows: Tensor) -> Tensor:
        """(n, bytes) -> (n, channels, height, width), float in [0, 1]."""

    def batch(self, indices: Tensor) -> Tensor:
        chosen = self.rows.index_select(0, indices.reshape(-1).to(self.rows.device)).to(
            indices.device
        )
        return self.decode(chosen).view(*indices.shape, *self.shape)

    def batches(self, indices: Tensor) -> Iterator[Tensor]:
        return (self.batch(few) for few in indices.split(self.eval_batch_size))

    def order(
        self, batch: int, seed: int, stream: int = 0, among: Tensor | None = None
    ) -> "BatchOrder":
        return BatchOrder(len(self), batch, seed, stream, among)

    def metadata(self) -> str:
        return json.dumps({"shape": self.shape, "binary": isinstance(self, BinaryImages)})

    @staticmethod
    def from_metadata(kept: str, reason: str) -> "BinaryImages | ByteImages":
        """No pictures, in the shape of those that `kept` was of; `reason` says why they are not here."""
        found = json.loads(kept)
        channels, height, width = found["shape"]
        size = math.prod((channels, height, width)) // (8 if found["binary"] else 1)
        kind = BinaryImages if found["binary"] else ByteImages
        return kind(torch.zeros(0, size, dtype=torch.uint8), (channels, height, width), reason)

    def to(self, device: torch.device) -> Self:
        """On the device if half its free memory holds them; else where they are, and each batch travels."""
        if device.type == "cuda" and self.rows.nbytes > torch.cuda.mem_get_info(device)[0] // 2:
            return self
        return replace(self, rows=self.rows.to(device))


class BinaryImages(ImageDataset):
    """Black and white pictures, one bit a pixel: all of 2D Shapes is 377 MB instead of 12 GB in floats.

    A row holds the pixels one after another, the most significant bit first.
    """

    def decode(self, rows: Tensor) -> Tensor:
        shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=rows.device)
        return (
            rows.unsqueeze(-1)
            .bitwise_right_shift(shifts)
            .bitwise_and(1)
            .view(-1, *self.shape)
            .float()
        )


class ByteImages(ImageDataset):
    """Grey or colour pictures, one byte a value; a row holds (height, width, channels)."""

    def decode(self, rows: Tensor) -> Tensor:
        channels, height, width = self.shape
        return rows.view(-1, height, width, channels).permute(0, 3, 1, 2).float() / 255


class BatchOrder:
    """Which examples are in the batch of a step: a fresh permutation every epoch, a function of (seed, step) alone.

    Nothing about the position needs saving, and a model meets the same batches alone or beside others.
    """

    def __init__(
        self, count: int, batch: int, seed: int, stream: int = 0, among: Tensor | None = None
    ) -> None:
        count = count if among is None else len(among)
        if count < batch:
            raise UserError(
                f"a batch of {batch} needs at least as many examples, there are {count} to train on; set training.batch"
            )
        self.count, self.batch, self.seed = count, batch, seed
        self.stream = stream  # of a seed's independent orders
        self.among = among  # the examples to order; None is all of them
        self.steps_per_epoch = (
            count // batch
        )  # the remainder is dropped, as in the released loaders
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
            generator = torch.Generator().manual_seed(
                stream_key(self.seed, epoch + (self.stream << 32))
            )
            order = torch.randperm(self.count, generator=generator)
            self._permutation, self._epoch = (
                order if self.among is None else self.among[order],
                epoch,
            )
        return self._permutation


def digest(words: str, rows: Tensor) -> str:
    """Of some words and of the first, the middle and the last row."""
    some = rows[[0, len(rows) // 2, len(rows) - 1]].cpu().contiguous().numpy().tobytes()
    return hashlib.sha256(words.encode() + some).hexdigest()


def stream_key(seed: int, number: int) -> int:
    """A well-mixed 63-bit key for one stream of a seed (splitmix64), so that neighbouring seeds share nothing."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & mask
    return (x ^ (x >> 31)) >> 1
