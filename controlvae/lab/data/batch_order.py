"""Order of batches: which examples are in the batch of a step, as a function of (seed, step)."""

import torch
from torch import Tensor

from controlvae.errors import UserError


def stream_key(seed: int, number: int) -> int:
    """Return a well-mixed 63-bit key (splitmix64) for one random stream of a seed.

    Neighbouring seeds and numbers give unrelated streams.
    """
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & mask
    return (x ^ (x >> 31)) >> 1


class BatchOrder:
    """Indices of the batch of each step: a new permutation every epoch.

    The order is a function of (seed, step) alone. Its position needs no checkpoint, and a model
    sees the same batches whether it is trained alone or together with others.

    Args:
        count: The number of examples.
        batch: The number of examples in a batch.
        seed: The seed of the run.
        stream: The number of an independent order of the same seed.
        subset: The indices of the examples to use. None uses all `count` examples.

    Raises:
        UserError: There are fewer examples than a batch needs.
    """

    def __init__(
        self, count: int, batch: int, seed: int, stream: int = 0, subset: Tensor | None = None
    ) -> None:
        count = count if subset is None else len(subset)
        if count < batch:
            raise UserError(
                f"training.batch is {batch}, but there are only {count} training examples; "
                f"set training.batch to {count} or less"
            )
        self.count, self.batch, self.seed = count, batch, seed
        self.stream = stream
        self.subset = subset
        self.steps_per_epoch = count // batch  # the remainder is dropped, as in the released code
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def indices(self, step: int) -> Tensor:
        """Return the indices of a step's batch, on the host: (batch,). Steps count from zero."""
        epoch, position = divmod(step, self.steps_per_epoch)
        permutation = self.permutation(epoch)
        return permutation[position * self.batch : (position + 1) * self.batch]

    def permutation(self, epoch: int) -> Tensor:
        """Return all indices of an epoch in their order: (count,)."""
        if epoch != self._epoch:
            key = stream_key(self.seed, epoch + (self.stream << 32))
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(key))
            self._permutation = order if self.subset is None else self.subset[order]
            self._epoch = epoch
        return self._permutation
