"""Batches of sentences of like length, so that a few static shapes serve a text and little padding is computed."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.lab.data.dataset import BatchOrder, stream_key

_SHUFFLE = (
    1 << 48
)  # the stream that orders an epoch's batches, beside the one that orders its sentences


Width = (
    int | tuple[int, ...]
)  # of a batch: the tokens of a row; one number for each part of examples that have several


class Bucket(NamedTuple):
    """Sentences to take together and the width that holds them."""

    indices: Tensor  # (n,) int64, on the host
    width: int


def length_classes(lengths: Tensor, multiple: int = 8) -> Tensor:
    """Every length made a multiple, and none longer than the longest: the width of its batches. int64, as `lengths`.

    `lengths` is a row, one per sentence, or a table, where an example has several parts, each with a width of its own.
    """
    if multiple < 1:
        raise ValueError(f"multiple must be 1 or more, got {multiple}")
    if lengths.ndim not in (1, 2) or not len(lengths) or int(lengths.min()) < 1:
        raise ValueError(
            "lengths must be a row of lengths, one per sentence, or a table of them, each 1 or more"
        )
    rounded = (lengths.long() + multiple - 1) // multiple * multiple
    return torch.minimum(rounded, lengths.long().amax(0))


def in_buckets(lengths: Tensor, batch: int, multiple: int = 8) -> Iterator[Bucket]:
    """Every sentence once, the short ones first, at most `batch` at a time: the way to evaluate."""
    classes = length_classes(lengths, multiple)
    for width in classes.unique().tolist():
        for indices in (classes == width).nonzero().squeeze(1).split(batch):
            yield Bucket(indices, width)


class BucketOrder(BatchOrder):
    """An `Order` whose batches hold sentences of like length; like it a function of (seed, step) alone.

    An epoch's permutation is sorted by length class, cut into batches, and the batches are shuffled. Every sentence
    comes once an epoch, except that a remainder smaller than a batch is dropped, as in `Order`: a random one, drawn
    before the sorting, so that long sentences are not dropped more often. A batch is as wide as its longest class.
    Examples of several parts are sorted by the first, then by the next, and a batch has a width for each.
    """

    def __init__(
        self,
        lengths: Tensor,
        batch: int,
        seed: int,
        multiple: int = 8,
        stream: int = 0,
        among: Tensor | None = None,
    ) -> None:
        super().__init__(len(lengths), batch, seed, stream, among)
        self.classes = length_classes(lengths.cpu(), multiple)

    def permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            plain = super().permutation(epoch)
            used = self.steps_per_epoch * self.batch
            by_length = self._by_length(plain[:used]).view(-1, self.batch)
            key = stream_key(self.seed, epoch + (self.stream << 32) + _SHUFFLE)
            shuffled = torch.randperm(len(by_length), generator=torch.Generator().manual_seed(key))
            self._permutation = torch.cat([by_length[shuffled].flatten(), plain[used:]])
        return self._permutation

    def width(self, step: int) -> Width:
        """Of a step's batch."""
        widest = self.classes[self.indices(step)].amax(0).tolist()
        return tuple(widest) if isinstance(widest, list) else widest

    def _by_length(self, indices: Tensor) -> Tensor:
        columns = self.classes.reshape(len(self.classes), -1).unbind(1)
        for column in reversed(columns):  # a stable sort keeps the order of those before it
            indices = indices[column[indices].argsort(stable=True)]
        return indices
