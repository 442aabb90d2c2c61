"""Share of a rank in every batch: its rows, their weight, and means over the whole batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


class BatchShare:
    """Rows of the global batch that a rank computes, and the sums that make the batch whole.

    A loss that every rank computes from values of `mean` is that of the global batch. Its gradient
    on a rank is the part that comes from the rank's own rows, so the sum of the gradients over
    ranks is the gradient of one process. Nothing is communicated in the backward pass for that.

    Args:
        rank: Number of this rank.
        size: Number of ranks.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.batch, self.count = 0, 0
        self.rows = slice(None)
        self.weight = 1.0

    @property
    def is_whole(self) -> bool:
        """True if one process computes the whole batch."""
        return self.size == 1

    @property
    def is_idle(self) -> bool:
        """True if the batch has fewer examples than ranks and none of them belongs to this one."""
        return self.weight == 0.0

    def bounds(self, batch: int) -> list[int]:
        """Return where the slices of a batch begin, and its end: (size + 1,).

        The first slices have one row more than the others if the batch cannot be divided evenly.
        """
        small, larger = divmod(batch, self.size)
        return [rank * small + min(rank, larger) for rank in range(self.size + 1)]

    def set_batch(self, batch: int) -> slice:
        """Choose the rows of a global batch and return them.

        A rank without an example computes the first row with weight zero, because it takes part in
        every collective operation.
        """
        if self.is_whole:
            return self.rows
        if batch != self.batch:
            bounds = self.bounds(batch)
            start, stop = bounds[self.rank], bounds[self.rank + 1]
            self.batch, self.weight = batch, (stop - start) / batch
            self.rows = slice(start, stop) if stop > start else slice(0, 1)
            self.count = self.rows.stop - self.rows.start
        return self.rows

    def mean(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return means over the global batch, with one all-reduce for all of them.

        Args:
            values: Means over the rows of this rank, of any shapes.

        Returns:
            The same on every rank, to the last bit. The gradient is that of this rank's rows.
        """
        if self.is_whole:
            return list(values)
        own = [value * self.weight for value in values]
        flat = torch.cat([value.detach().double().reshape(-1) for value in own])
        if self.is_idle:
            flat = torch.zeros_like(flat)  # also where the idle row gave NaN
        dist.all_reduce(flat)
        parts = flat.split([value.numel() for value in own])
        return [
            replace_value(each, part.view(each.shape).to(each.dtype))
            for each, part in zip(own, parts, strict=True)
        ]

    def gather(self, value: Tensor) -> Tensor:
        """Return the rows of all ranks in their order, (batch, ...). Own rows keep their gradient.

        Args:
            value: Rows of this rank, (rows, ...).
        """
        if self.is_whole:
            return value
        whole = value.new_zeros(self.batch, *value.shape[1:])
        own = whole.clone()
        if not self.is_idle:
            own = torch.cat([whole[: self.rows.start], value, whole[self.rows.stop :]])
        total = own.detach().clone()
        dist.all_reduce(total)
        return replace_value(own, total)


def replace_value(own: Tensor, total: Tensor) -> Tensor:
    """Return `total` with the gradient of `own`.

    `own + (total - own).detach()` would round, and ranks would no longer agree to the last bit.
    """
    return _Replace.apply(own, total)


class _Replace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, total: Tensor) -> Tensor:
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
