"""Dropout masks of many models: those that each of them draws when it is trained alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from controlvae.lab.data.bucketing import Width
from controlvae.lab.engines.dropout import seed_masks


class StackedMasks:
    """Masks of a step as one tensor, (models, values), at a fixed address for each width.

    Args:
        keep: Share of values that stay.
        seeds: Seed of each model.
        count_values: Returns the number of values that a step of a given width needs.
        device: Device of the masks.
        dtype: Type of the masks.
    """

    def __init__(
        self,
        keep: float,
        seeds: Sequence[int],
        count_values: Callable[[Width], int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.keep = keep
        self._seeds, self._count_values = seeds, count_values
        self._empty = torch.empty(0, device=device, dtype=dtype)
        self._generator = torch.Generator(device)
        self._buffers: dict[Width, Tensor] = {}

    def draw(self, step: int, width: Width) -> None:
        """Draw the masks of a step whose batch has this width."""
        for row, seed in zip(self.values(width), self._seeds, strict=True):
            seed_masks(self._generator, seed, step)
            row.bernoulli_(self.keep, generator=self._generator)

    def values(self, width: Width) -> Tensor:
        """Return the masks of a width, (models, values)."""
        if width not in self._buffers:
            size = len(self._seeds), self._count_values(width)
            self._buffers[width] = self._empty.new_empty(size)
        return self._buffers[width]


class MaskReader:
    """Dropout function that applies the masks of one model in order.

    Args:
        values: Masks of a step, (values,).
        keep: Share of values that stay. With 1, no mask is read.
    """

    def __init__(self, values: Tensor, keep: float) -> None:
        self._unused, self._keep = values, keep

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the next mask to `x`."""
        if self._keep == 1:
            return x
        mask, self._unused = self._unused[: x.numel()], self._unused[x.numel() :]
        return (x * mask.view(x.shape)).mul_(1 / self._keep)
