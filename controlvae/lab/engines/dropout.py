"""Dropout as a function of (seed, step): the masks of a step drawn at once, then handed out in order."""

from collections.abc import Callable

import torch
from torch import Tensor

from controlvae.lab.data.bucketing import Width
from controlvae.lab.data.dataset import stream_key

_STREAM = 1 << 40  # the first stream of a seed's dropout, one per step


class Masks:
    """A `Drop` for models of text.

    Steps of one width share one buffer, which every step of theirs fills anew. So a captured step reads masks at
    addresses that stay, and holds no generator.

    Args:
        rate: the share of values that become zero.
        seed: of the run.
        size: how many masks a step of a given width takes.
        dtype: of the masks, which are zeros and ones; the narrowest that a step computes in.
    """

    def __init__(
        self,
        rate: float,
        seed: int,
        size: Callable[[Width], int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.keep = 1 - rate
        self._seed, self._size = seed, size
        self._empty = torch.empty(0, device=device, dtype=dtype)
        self._generator = torch.Generator(device)
        self._buffers: dict[Width, Tensor] = {}
        self._unused = self._empty

    def draw(self, step: int, width: Width) -> None:
        """The masks of a step whose batch has this width."""
        if width not in self._buffers:
            self._buffers[width] = self._empty.new_empty(self._size(width))
        self._generator.manual_seed(stream_key(self._seed, _STREAM + step))
        self._unused = self._buffers[width].bernoulli_(self.keep, generator=self._generator)

    def __call__(self, x: Tensor) -> Tensor:
        mask, self._unused = self._unused[: x.numel()], self._unused[x.numel() :]
        return (x * mask.view(x.shape)).mul_(
            1 / self.keep
        )  # not in the mask: bfloat16 has no 1 / 0.9
