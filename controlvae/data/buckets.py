"""Batches of sentences of like length, so that a few static shapes serve a text and little padding is computed."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.data.examples import Order, stream_key

_SHUFFLE = 1 << 48  # the stream that orders an epoch's batches, beside the one that orders its sentences


class Bucket(NamedTuple):
    """Sentences to take together and the width that holds them."""

    indices: Tensor  # (n,) int64, on the host
    width: int


def length_classes(lengths: Tensor, multiple: int = 8) -> Tensor:
    """Every length made a multiple, and none longer than the longest: the width of its batches. (count,) int64"""
    if multiple < 1:
        raise ValueError(f"multiple must be 1 or more, got {multiple}")
    if lengths.ndim != 1 or not len(lengths) or int(lengths.min()) < 1:
        raise ValueError("lengths must be a row of lengths, one per sentence, each 1 or more")
    rounded = (lengths.long() + multiple - 1) // multiple * multiple
    return rounded.clamp(max=int(lengths.max()))


def in_buckets(lengths: Tensor, batch: int, multiple: int = 8) -> Iterator[Bucket]:
    """Every sentence once, the short ones first, at most `batch` at a time: the way to evaluate."""
    classes = length_classes(lengths, multiple)
    for width in classes.unique().tolist():
        for indices in (classes == width).nonzero().squeeze(1).split(batch):
            yield Bucket(indices, width)


class BucketOrder(Order):
    """An `Order` whose batches hold sentences of like length; like it a function of (seed, step) alone.

    An epoch's permutation is sorted by length class, cut into batches, and the batches are shuffled. Every sentence
    comes once an epoch, except that a remainder smaller than a batch is dropped, as in `Order`: a random one, drawn
    before the sorting, so that long sentences are not dropped more often. A batch is as wide as its longest class.
    """

    def __init__(self, lengths: Tensor, batch: int, seed: int, multiple: int = 8, stream: int = 0) -> None:
        super().__init__(len(lengths), batch, seed, stream)
        self.classes = length_classes(lengths.cpu(), multiple)
        self.widths: tuple[int, ...] = tuple(self.classes.unique().tolist())  # every width that a batch may have

    def permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            plain = super().permutation(epoch)
            used = self.steps_per_epoch * self.batch
            by_length = plain[:used][self.classes[plain[:used]].argsort(stable=True)].view(-1, self.batch)
            key = stream_key(self.seed, epoch + (self.stream << 32) + _SHUFFLE)
            shuffled = torch.randperm(len(by_length), generator=torch.Generator().manual_seed(key))
            self._permutation = torch.cat([by_length[shuffled].flatten(), plain[used:]])
        return self._permutation

    def width(self, step: int) -> int:
        """Of a step's batch, one of `widths`."""
        return int(self.classes[self.indices(step)].max())
