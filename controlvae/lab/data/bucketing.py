"""Batches of sentences of similar length: few static shapes and little padding."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.lab.data.batch_order import BatchOrder, stream_key

_SHUFFLE_STREAM = 1 << 48  # orders the batches of an epoch; another stream orders its sentences
_COMMON_SEED = 0  # of the widths that all seeds share

# Number of tokens per row of a batch; one number for each part of examples that have several.
Width = int | tuple[int, ...]


class Bucket(NamedTuple):
    """Sentences to evaluate together, and the number of tokens that holds all of them."""

    indices: Tensor  # (n,) int64, on the host
    width: int


def length_classes(lengths: Tensor, multiple: int = 8) -> Tensor:
    """Round lengths up to a multiple, but not beyond the longest length.

    Args:
        lengths: One length per sentence, (count,), or one per part of an example, (count, parts).
        multiple: The number of tokens to round to.

    Returns:
        The width of each sentence's batches, int64 with the shape of `lengths`.
    """
    if multiple < 1:
        raise ValueError(f"multiple must be 1 or more, got {multiple}")
    if lengths.ndim not in (1, 2) or not len(lengths) or int(lengths.min()) < 1:
        raise ValueError(
            "lengths must be a vector or matrix of numbers of 1 or more, "
            f"got shape {tuple(lengths.shape)}"
        )
    rounded = (lengths.long() + multiple - 1) // multiple * multiple
    return torch.minimum(rounded, lengths.long().amax(0))


def iter_buckets(lengths: Tensor, batch: int, multiple: int = 8) -> Iterator[Bucket]:
    """Yield every sentence once, the short ones first, for evaluation.

    Args:
        lengths: The length of each sentence, (count,).
        batch: The largest number of sentences in a bucket.
        multiple: Lengths are rounded up to a multiple of this.
    """
    classes = length_classes(lengths, multiple)
    for width in classes.unique().tolist():
        for indices in (classes == width).nonzero().squeeze(1).split(batch):
            yield Bucket(indices, width)


class BucketOrder(BatchOrder):
    """A `BatchOrder` whose batches hold sentences of similar length.

    The permutation of an epoch is sorted by length class and cut into batches, and the batches are
    shuffled. Every sentence comes once per epoch, except for a remainder smaller than a batch. The
    remainder is drawn before sorting, so that long sentences are not dropped more often. A batch is
    as wide as its longest class. Examples with several parts are sorted by the first part, then by
    the next, and a batch has a width for each part.

    With shared widths the batch of a step is equally wide for all seeds, so that a stack of models
    needs no further padding. A seed still decides which sentences of a class are in a batch.

    Args:
        lengths: The length of each sentence, (count,), or of each part, (count, parts).
        batch: The number of sentences in a batch.
        seed: The seed of the run.
        multiple: Widths are multiples of this.
        stream: The number of an independent order of the same seed.
        subset: The indices of the sentences to use. None uses all.
        shared_widths: Let all seeds have the same sequence of widths.
    """

    def __init__(
        self,
        lengths: Tensor,
        batch: int,
        seed: int,
        multiple: int = 8,
        stream: int = 0,
        subset: Tensor | None = None,
        shared_widths: bool = False,
    ) -> None:
        super().__init__(len(lengths), batch, seed, stream, subset)
        self.classes = length_classes(lengths.cpu(), multiple)
        self._common: BatchOrder | None = None
        if shared_widths:
            self._common = BatchOrder(len(lengths), batch, _COMMON_SEED, stream, subset)

    def permutation(self, epoch: int) -> Tensor:
        """Return all indices of an epoch, batch by batch: (count,)."""
        if epoch != self._epoch:
            shuffled = super().permutation(epoch)
            if self._common is None:
                used, seed = self.steps_per_epoch * self.batch, self.seed
                rows, remainder = self._sort_by_length(shuffled[:used]), shuffled[used:]
            else:
                seed = _COMMON_SEED
                rows, remainder = self._choose_rows(shuffled, self._common.permutation(epoch))
            batches = rows.view(-1, self.batch)
            key = stream_key(seed, epoch + (self.stream << 32) + _SHUFFLE_STREAM)
            order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(key))
            self._permutation = torch.cat([batches[order].flatten(), remainder])
        return self._permutation

    def _choose_rows(self, shuffled: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
        """Choose as many rows of each class as another permutation would use.

        Args:
            shuffled: All indices in the order of this seed.
            common: All indices in an order that all seeds know.

        Returns:
            The chosen indices, sorted by class, and the others.
        """
        table = self.classes.reshape(len(self.classes), -1)
        number = torch.unique(table, dim=0, return_inverse=True)[1]  # of each row's class
        wanted = common[: self.steps_per_epoch * self.batch]
        counts = torch.bincount(number[wanted], minlength=int(number.max()) + 1)
        rows = self._sort_by_length(shuffled)
        sizes = torch.bincount(number[rows], minlength=len(counts))
        rank = torch.arange(len(rows)) - (sizes.cumsum(0) - sizes)[number[rows]]
        is_chosen = rank < counts[number[rows]]
        return rows[is_chosen], rows[~is_chosen]

    def width(self, step: int) -> Width:
        """Return the padded length of the batch at `step`."""
        widest = self.classes[self.indices(step)].amax(0).tolist()
        return tuple(widest) if isinstance(widest, list) else widest

    def _sort_by_length(self, indices: Tensor) -> Tensor:
        columns = self.classes.reshape(len(self.classes), -1).unbind(1)
        for column in reversed(columns):  # stable sorts keep the order of earlier columns
            indices = indices[column[indices].argsort(stable=True)]
        return indices
