"""Random numbers of a rank's rows: drawn for the whole batch, as one process draws them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from controlvae.lab.ranks.share import BatchShare

_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
_SHAPED = (torch.randn, torch.rand)
_IN_PLACE = (
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.bernoulli_,
    Tensor.exponential_,
)
# Functions that multiply their input by random numbers, or that draw from it elementwise.
_DROPOUTS = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    torch.dropout,
    torch.feature_dropout,
)


class RowNoise(TorchFunctionMode):
    """Draw random tensors for the whole batch within this context, and return the rank's rows.

    With generators seeded alike on every rank, a model that draws its own noise or has dropout
    then draws the numbers of one process. A tensor belongs to the batch if its first axis is as
    long as the rank's rows; others are drawn as they are, equal on all ranks.

    Args:
        share: Share of this rank in the batch.
    """

    def __init__(self, share: BatchShare) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Replace functions that draw random numbers. The mode is off while this runs."""
        kwargs = kwargs or {}
        if not args or not self._has_rows(_shape_of(function, args, kwargs)):
            return function(*args, **kwargs)
        if function in _IN_PLACE:
            return self._fill(function, args, kwargs)
        if function in _DROPOUTS:
            return self._drop(function, args, kwargs)
        return self._draw(function, args, kwargs)

    def _draw(self, function: Any, args: tuple[Any, ...], kwargs: Any) -> Tensor:
        if function in _LIKE:
            return self._draw_like(_LIKE[function], args[0], kwargs)
        if function is torch.bernoulli:
            return self._draw_bernoulli(args[0])
        if function is torch.normal:
            deviation = args[1] if len(args) > 1 else kwargs.get("std", 1.0)
            noise: Tensor = args[0] + deviation * self._draw_like(torch.randn, args[0], {})
            return noise
        rest = {name: value for name, value in kwargs.items() if name != "size"}
        return self._take(function(self._whole(_shape_of(function, args, kwargs)), **rest))

    def _draw_like(self, function: Callable[..., Tensor], like: Tensor, options: Any) -> Tensor:
        chosen = {"dtype": like.dtype, "device": like.device, **options}
        chosen.pop("memory_format", None)
        return self._take(function(self._whole(like.shape), **chosen))

    def _has_rows(self, shape: tuple[int, ...]) -> bool:
        return len(shape) > 0 and shape[0] == self.share.count

    def _whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self.share.batch, *shape[1:])

    def _take(self, whole: Tensor) -> Tensor:
        return whole[self.share.rows]

    def _fill(self, function: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        """Fill a tensor in place with its rows of a larger one."""
        target = args[0]
        whole = torch.empty(self._whole(target.shape), dtype=target.dtype, device=target.device)
        if len(args) > 1 and isinstance(args[1], Tensor):  # probabilities per element
            return target.copy_(self._draw_bernoulli(args[1].expand_as(target)))
        with torch.no_grad():
            return target.copy_(self._take(function(whole, *args[1:], **kwargs)))

    def _draw_bernoulli(self, probability: Tensor) -> Tensor:
        whole = probability.new_full(self._whole(probability.shape), 0.5)
        whole[self.share.rows] = probability.detach()
        return self._take(torch.bernoulli(whole))

    def _drop(self, function: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        """Multiply by the rows of a mask that dropout gives for ones."""
        x = args[0]
        inplace = bool(args[3] if len(args) > 3 else kwargs.pop("inplace", False))
        ones = torch.ones(self._whole(x.shape), dtype=x.dtype, device=x.device)
        mask = self._take(function(ones, *args[1:3], **kwargs))
        return x.mul_(mask) if inplace else x * mask


def _shape_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape that a function draws random numbers for, or () for other functions."""
    if function in _SHAPED:
        if "out" in kwargs or isinstance(args[0], Tensor):
            return ()
        return tuple(args[0]) if isinstance(args[0], list | tuple) else args
    known = function in _LIKE or function in _IN_PLACE or function in _DROPOUTS
    if not known and function not in (torch.bernoulli, torch.normal):
        return ()
    return tuple(args[0].shape) if isinstance(args[0], Tensor) else ()
