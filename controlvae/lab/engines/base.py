"""Interface that every training engine implements."""

from typing import Protocol

from torch import Tensor


class Engine(Protocol):
    """Trainer of one or more models of the same shape."""

    step: int

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps.

        This is the only call that waits for the device.

        Returns:
            Measurements on the host, (steps, models, columns).
        """
        ...

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return copies of all tensors of one model that change in training, on the host."""
        ...

    def set_target(self, model: int, target: float) -> None:
        """Change the target of one model."""
        ...

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Continue one model from a snapshot that any engine took.

        Args:
            model: Index of the model.
            step: Number of steps taken before the snapshot.
            tensors: The snapshot.
        """
        ...


def strip_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, with the prefix removed."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def as_control_state(tensors: dict[str, Tensor]) -> dict[str, float | Tensor]:
    """Return the saved state of a controller as it loads it: numbers, or one value per model."""
    return {name: value.item() if value.dim() == 0 else value for name, value in tensors.items()}
