"""Half precision in a user's model: whether it computes in float16, and computing without."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@contextmanager
def without_half() -> Iterator[None]:
    """Turn off autocast to float16, also where the code inside asks for it.

    An inner `torch.autocast` would win over an outer one that is disabled, so entering it is
    replaced for as long as this context lasts.
    """
    enter = torch.autocast.__enter__

    def enter_disabled(self: Any) -> Any:
        if self.fast_dtype == torch.float16:
            self._enabled = False
        return enter(self)

    torch.autocast.__enter__ = enter_disabled  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


class _HalfDetector(TorchDispatchMode):
    """Notes whether an operation returns float16."""

    found = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            self.found = self.found or (isinstance(value, Tensor) and value.dtype == torch.float16)
        return result


def computes_in_half(function: Callable[[], Any]) -> bool:
    """Return whether a call computes anything in float16, whose range ends at 65,504."""
    with _HalfDetector() as detector:
        function()
    return detector.found
