"""Random splits and subsets. The choice is fixed, so that seeds of a run share their data."""

from typing import Literal

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.data.batch_order import stream_key

TrainTest = Literal["train", "test"]
_SPLIT_SEED = 1  # independent of the seed of a run


def split_indices(
    count: int, split: TrainTest, held_out: float, unit: str = "images"
) -> np.ndarray:
    """Return the sorted indices of the training or test set.

    Args:
        count: The number of examples.
        split: "train" or "test".
        held_out: The fraction of examples in the test set, chosen at random.
        unit: The plural of what is split, for error messages.

    Raises:
        UserError: The split would be empty.
    """
    test_count = round(held_out * count)
    if split == "test" and held_out == 0:
        raise UserError("split='test' needs held_out, the fraction in the test set")
    if held_out > 0 and not 0 < test_count < count:
        raise UserError(
            f"held_out={held_out:g} of {count:,} {unit} leaves one split empty; set data.held_out=0"
        )
    order = np.random.default_rng(stream_key(_SPLIT_SEED, count)).permutation(count)
    return np.sort(order[:test_count] if split == "test" else order[test_count:])


def subset_indices(count: int, size: int | None) -> np.ndarray:
    """Return the sorted indices of `size` random examples out of `count`; all if size is None."""
    if size is None or size == count:
        return np.arange(count)
    if size > count:
        raise UserError(f"images={size:,} is more than there are: {count:,}; set data.images lower")
    return np.sort(np.random.default_rng(stream_key(0, count)).choice(count, size, replace=False))


def describe_split(count: int, split: TrainTest, held_out: float) -> str:
    """Return a human-readable description of a split of images.

    It is stored with metrics, so its wording must not change.

    Args:
        count: The number of images in both splits together.
        split: "train" or "test".
        held_out: The fraction of images in the test set.
    """
    if held_out == 0:
        return "no held-out images"
    test_count = round(held_out * count)
    if split == "test":
        return f"test: {test_count:,} of {count:,} held out"
    return f"train: {count - test_count:,} of {count:,}"
