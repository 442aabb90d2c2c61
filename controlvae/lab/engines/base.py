"""The interface that every training engine implements."""

from typing import Protocol

from torch import Tensor


class Engine(Protocol):
    """Something that trains models side by side."""

    step: int

    def advance(self, steps: int) -> Tensor: ...
    def snapshot(self, model: int) -> dict[str, Tensor]: ...
    def set_target(self, model: int, target: float) -> None: ...
    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None: ...


def strip_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
