"""Dropout as a function of (seed, step): all masks of a step are drawn at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.data.bucketing import Width
from controlvae.lab.ranks.share import BatchShare

_FIRST_STREAM = 1 << 40  # random stream of step 0; each step has its own


def seed_masks(generator: torch.Generator, seed: int, step: int) -> None:
    """Set a generator to draw the masks of one step of a run."""
    generator.manual_seed(stream_key(seed, _FIRST_STREAM + step))


class DropoutMasks:
    """Dropout function for text models, which consumes the masks of a step in order.

    Steps of one width share a buffer that each of them refills. A captured step therefore reads
    masks at fixed addresses and contains no generator.

    Args:
        rate: Share of values that become zero.
        seed: Seed of the run.
        count_values: Returns the number of mask values that a step of a given width needs.
        device: Device of the masks.
        dtype: Type of the masks, which are zeros and ones: the narrowest that a step computes in.
        share: Rows of the batch that this process computes. Masks are drawn for all of them.
    """

    def __init__(
        self,
        rate: float,
        seed: int,
        count_values: Callable[[Width], int],
        device: torch.device,
        dtype: torch.dtype,
        share: BatchShare,
    ) -> None:
        self.keep, self._share = 1 - rate, share
        self._seed, self._count_values = seed, count_values
        self.dtype = dtype
        self._empty = torch.empty(0, device=device, dtype=dtype)
        self._generator = torch.Generator(device)
        self._buffers: dict[Width, Tensor] = {}
        self._unused = self._empty

    def draw(self, step: int, width: Width) -> None:
        """Draw the masks of a step whose batch has this width."""
        if width not in self._buffers:
            self._buffers[width] = self._empty.new_empty(self._count_values(width))
        seed_masks(self._generator, self._seed, step)
        self._unused = self._buffers[width].bernoulli_(self.keep, generator=self._generator)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the next mask to `x`."""
        size, rows = x.numel(), slice(None)
        if not self._share.is_whole:
            # Attention weights have heads next to the batch: as many rows for each example.
            times = len(x) // self._share.count
            size = x[0].numel() * times * self._share.batch
            rows = slice(self._share.rows.start * times, self._share.rows.stop * times)
        mask, self._unused = self._unused[:size], self._unused[size:]
        mask = mask.view(-1, *x.shape[1:])[rows]
        # The scale is not part of the mask, because bfloat16 cannot represent 1 / 0.9.
        return (x * mask).mul_(1 / self.keep)
