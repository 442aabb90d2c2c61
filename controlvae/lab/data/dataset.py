"""Data sets in memory: the interface of all of them, image data sets, and the order of batches."""

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

from controlvae.lab.data.batch_order import BatchOrder
from controlvae.lab.reading import parse_json


class Dataset(Protocol):
    """Examples whose batches are assembled on the device that holds them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example: (channels, height, width) for images."""
        ...

    @property
    def eval_batch_size(self) -> int:
        """Number of examples to evaluate at a time."""
        ...

    @property
    def source(self) -> str:
        """Human-readable origin of the data."""
        ...

    @property
    def split(self) -> str:
        """Human-readable name of the split."""
        ...

    @property
    def factors(self) -> np.ndarray | None:
        """Class numbers of the ground-truth factors, (count, factors), or None if unknown."""
        ...

    @property
    def factor_names(self) -> tuple[str, ...]:
        """Names of the columns of `factors`."""
        ...

    @property
    def unordered(self) -> tuple[str, ...]:
        """Names of categorical factors, such as shape, whose class numbers have no order."""
        ...

    @property
    def levels(self) -> Mapping[str, np.ndarray]:
        """Value of each class, by factor, for factors whose value is not the class number."""
        ...

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Any:
        """Return the examples at these indices as the model's `encode` takes them.

        Images are floats in [0, 1] with shape (n, *shape).
        """
        ...

    def batches(self, indices: Tensor) -> Iterator[Any]:
        """Yield the examples at these indices in batches for evaluation, in any order."""
        ...

    def order(
        self, batch: int, seed: int, stream: int = 0, subset: Tensor | None = None
    ) -> "BatchOrder":
        """Return the batch order of a run.

        Args:
            batch: The number of examples in a batch.
            seed: The seed of the run.
            stream: The number of an independent order of the same seed.
            subset: The indices of the examples to use. None uses all.
        """
        ...

    def to(self, device: torch.device) -> "Dataset":
        """Return the data set with its tensors on the device."""
        ...

    def fingerprint(self) -> str:
        """Return a digest of a few examples that identifies the data and its order."""
        ...

    @property
    def metadata_file(self) -> str:
        """Name of the file in a run folder that stores `metadata()`."""
        ...

    def metadata(self) -> str:
        """Return, as JSON, what a trained model needs to work without the data."""
        ...


@dataclass(frozen=True)
class ImageDataset(ABC):
    """Images as rows of bytes, in memory or memory-mapped, decoded one batch at a time."""

    rows: Tensor  # (count, bytes per image) uint8
    shape: tuple[int, int, int]
    source: str
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    levels: Mapping[str, np.ndarray] = field(default_factory=dict)
    eval_batch_size: ClassVar[int] = 500
    metadata_file: ClassVar[str] = "pictures.json"  # the name in run folders of all versions

    def __len__(self) -> int:
        return len(self.rows)

    def fingerprint(self) -> str:
        """Return a digest of the size, the shape and three images."""
        return hash_rows(f"{len(self)} {self.shape}", self.rows)

    @abstractmethod
    def decode(self, rows: Tensor) -> Tensor:
        """Convert rows, (n, bytes), to floats in [0, 1], (n, channels, height, width)."""

    def batch(self, indices: Tensor) -> Tensor:
        """Return the images at these indices: (*indices.shape, channels, height, width)."""
        rows = self.rows.index_select(0, indices.reshape(-1).to(self.rows.device))
        return self.decode(rows.to(indices.device)).view(*indices.shape, *self.shape)

    def batches(self, indices: Tensor) -> Iterator[Tensor]:
        """Yield the images at these indices in batches."""
        return (self.batch(part) for part in indices.split(self.eval_batch_size))

    def order(
        self, batch: int, seed: int, stream: int = 0, subset: Tensor | None = None
    ) -> "BatchOrder":
        """Return the batch order of a run.

        Args:
            batch: The number of images in a batch.
            seed: The seed of the run.
            stream: The number of an independent order of the same seed.
            subset: The indices of the images to use. None uses all.
        """
        return BatchOrder(len(self), batch, seed, stream, subset)

    def metadata(self) -> str:
        """Return the images' shape and kind as JSON."""
        return json.dumps({"shape": self.shape, "binary": isinstance(self, BinaryImages)})

    @staticmethod
    def from_metadata(metadata: str, reason: str) -> "BinaryImages | ByteImages":
        """Return an empty data set with the shape that `metadata()` stored.

        Args:
            metadata: The JSON text.
            reason: The reason why the images are missing. It becomes the data set's `source`.
        """
        content = parse_json(metadata)
        channels, height, width = content["shape"]
        size = math.prod((channels, height, width)) // (8 if content["binary"] else 1)
        kind = BinaryImages if content["binary"] else ByteImages
        return kind(torch.zeros(0, size, dtype=torch.uint8), (channels, height, width), reason)

    def to(self, device: torch.device) -> Self:
        """Return the data set on the device, or unchanged if it exceeds half the free memory.

        An unchanged data set copies each batch to the device instead.
        """
        if device.type == "cuda" and self.rows.nbytes > torch.cuda.mem_get_info(device)[0] // 2:
            return self
        return replace(self, rows=self.rows.to(device))


class BinaryImages(ImageDataset):
    """Black and white images with one bit per pixel.

    All of 2D Shapes takes 377 MB instead of 12 GB as floats. A row holds the pixels in order, the
    most significant bit first.
    """

    def decode(self, rows: Tensor) -> Tensor:
        """Unpack bits, (n, bytes), to zeros and ones, (n, channels, height, width)."""
        shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=rows.device)
        bits = rows.unsqueeze(-1).bitwise_right_shift(shifts).bitwise_and(1)
        return bits.view(-1, *self.shape).float()


class ByteImages(ImageDataset):
    """Grey or colour images with one byte per value; a row holds (height, width, channels)."""

    def decode(self, rows: Tensor) -> Tensor:
        """Convert bytes, (n, bytes), to floats in [0, 1], (n, channels, height, width)."""
        channels, height, width = self.shape
        return rows.view(-1, height, width, channels).permute(0, 3, 1, 2).float() / 255


def holds_images(examples: Dataset) -> bool:
    """Return whether examples are images: those of the lab, or a user's."""
    return isinstance(examples, ImageDataset) or bool(getattr(examples, "holds_images", False))


def hash_rows(label: str, rows: Tensor) -> str:
    """Return a SHA-256 digest of a label and of the first, middle and last row."""
    sample = rows[[0, len(rows) // 2, len(rows) - 1]].cpu().contiguous().numpy().tobytes()
    return hashlib.sha256(label.encode() + sample).hexdigest()
