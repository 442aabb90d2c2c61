"""TensorBoard event files in the run folder."""

from typing import Any

from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.trackers.base import last_step, numbers, require_package


class TensorBoard:
    """Event files in `RUN/tensorboard`. Steps that a crash took back are purged."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        step = last_step(folder)
        self._writer = SummaryWriter(
            str(folder.path / "tensorboard"), purge_step=step + 1 if step else 0
        )

    @staticmethod
    def check() -> None:
        """Raise UserError if TensorBoard is not installed."""
        require_package("tensorboard", "tensorboard", extra="tensorboard")

    def write(self, record: dict[str, Any]) -> None:
        """Write the numbers of one log record."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
