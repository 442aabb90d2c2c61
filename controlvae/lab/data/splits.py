"""Which of the pictures: a held-out part, a subset. A fixed choice, so that seeds of a run differ in training alone."""

from typing import Literal

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.data.dataset import stream_key

Part = Literal["train", "test"]
_SPLIT = 1  # the seed of the choice, whatever that of a run


def split_indices(count: int, part: Part, held_out: float, what: str = "pictures") -> np.ndarray:
    """The sorted indices of a part: `held_out` of `count` examples, chosen at random, are the test set."""
    tested = round(held_out * count)
    if part == "test" and held_out == 0:
        raise UserError("split='test' needs held_out, the fraction in the test set")
    if held_out > 0 and not 0 < tested < count:
        raise UserError(
            f"held_out={held_out:g} of {count:,} {what} leaves one part empty; set data.held_out=0"
        )
    order = np.random.default_rng(stream_key(_SPLIT, count)).permutation(count)
    return np.sort(order[:tested] if part == "test" else order[tested:])


def subset(count: int, wanted: int | None) -> np.ndarray:
    """The sorted indices of `wanted` examples chosen at random out of `count`; all of them where it is None."""
    if wanted is None or wanted == count:
        return np.arange(count)
    if wanted > count:
        raise UserError(f"images={wanted:,} asks for more pictures than there are: {count:,}")
    return np.sort(np.random.default_rng(stream_key(0, count)).choice(count, wanted, replace=False))


def describe_split(count: int, part: Part, held_out: float) -> str:
    """What `part_of` chose, for people."""
    if held_out == 0:
        return "no held-out images"
    tested = round(held_out * count)
    return (
        f"test: {tested:,} of {count:,} held out"
        if part == "test"
        else f"train: {count - tested:,} of {count:,}"
    )
