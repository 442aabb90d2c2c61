"""User-supplied data behind the interface that evaluation, plots and the dashboard read."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.lab.custom.batches import cast_batch, map_tensors, select_input
from controlvae.lab.custom.sources import ArrayData, IndexedData, StreamData, UserData
from controlvae.lab.data.batch_order import BatchOrder
from controlvae.lab.data.dataset import Dataset

STREAM_EXAMPLES = 10_000  # read from a stream for evaluation
_MAX_VALUES = 1 << 22  # in a batch of evaluation


@dataclass(frozen=True)
class UserExamples:
    """Examples of a user's data set. See `controlvae.lab.data.dataset.Dataset`.

    Attributes:
        data: Arrays or a data set with indices.
        shape: Shape of one example that the model encodes.
        pixels: Lowest and highest pixel value if the examples are images, else empty.
        inputs: Key, position or function that selects what `encode` takes from a batch.
        dtype: Floating type of the model.
        device: Device of the batches.
        split: Human-readable name of the split.
        factors: Class numbers of the ground-truth factors, (count, factors), or None.
        factor_names: Names of the factors.
    """

    data: ArrayData | IndexedData | Dataset
    shape: tuple[int, ...]
    pixels: tuple[float, ...] = ()
    inputs: Any = None
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    split: str = "all"
    factors: np.ndarray | None = None
    factor_names: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    levels: Mapping[str, np.ndarray] = field(default_factory=dict)

    metadata_file = "user_data.json"

    @property
    def holds_images(self) -> bool:
        """True if the examples are images: (channels, height, width) with 1 or 3 channels."""
        return bool(self.pixels)

    @property
    def source(self) -> str:
        """Human-readable origin of the data."""
        return self.data.source

    @property
    def eval_batch_size(self) -> int:
        """Number of examples to evaluate at a time."""
        return max(1, min(500, _MAX_VALUES // max(1, math.prod(self.shape))))

    def __len__(self) -> int:
        return len(self.data)

    def full_batch(self, indices: Tensor) -> Any:
        """Return the examples at these indices as the data returns them, on the device."""
        if isinstance(self.data, ArrayData | IndexedData):
            batch = self.data.fetch(
                indices.cpu() if isinstance(self.data, IndexedData) else indices
            )
        else:
            batch = self.data.batch(indices)
        return cast_batch(map_tensors(batch, lambda t: t.to(self.device)), self.dtype)

    def batch(self, indices: Tensor) -> Tensor:
        """Return what the model encodes of the examples at these indices."""
        return select_input(self.full_batch(indices), self.inputs)

    def batches(self, indices: Tensor) -> Iterator[Any]:
        """Yield what the model encodes of these examples, in batches."""
        return (self.batch(part) for part in indices.split(self.eval_batch_size))

    def to_pixels(self, x: Tensor) -> Tensor:
        """Return images with values in [0, 1]."""
        low, high = self.pixels or (0.0, 1.0)
        return ((x.reshape(len(x), *self.shape).float() - low) / (high - low)).clamp(0, 1)

    def order(
        self, batch: int, seed: int, stream: int = 0, subset: Tensor | None = None
    ) -> BatchOrder:
        """Return the batch order of a run.

        Args:
            batch: The number of examples in a batch.
            seed: The seed of the run.
            stream: The number of an independent order of the same seed.
            subset: The indices of the examples to use. None uses all.
        """
        return BatchOrder(len(self), batch, seed, stream, subset)

    def to(self, device: torch.device) -> "UserExamples":
        """Return the examples with their batches on a device."""
        return replace(self, data=self.data.to(device), device=device)

    def fingerprint(self) -> str:
        """Return a digest of a few examples that identifies the data and its order."""
        return self.data.fingerprint()

    def metadata(self) -> str:
        """Return the shape of an example as JSON."""
        return json.dumps({"shape": self.shape, "source": self.source})


def pixel_range(x: Tensor) -> tuple[float, ...]:
    """Return the range of pixel values of a batch of images, or nothing if it holds no images.

    Images have shape (batch, 1 or 3, height, width) and values in [0, 1] or [-1, 1].
    """
    is_image = x.dim() == 4 and x.shape[1] in (1, 3) and min(x.shape[2:]) > 1
    if not is_image or not x.is_floating_point():
        return ()
    low, high = float(x.min()), float(x.max())
    if low < -1 - 1e-3 or high > 1 + 1e-3:
        return ()
    return (0.0, 1.0) if low >= 0 else (-1.0, 1.0)


def indexed_part(data: UserData | Dataset) -> ArrayData | IndexedData | Dataset:
    """Return data with indices: of a stream its first examples."""
    return data.head(STREAM_EXAMPLES) if isinstance(data, StreamData) else data
