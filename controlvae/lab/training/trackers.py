"""Destinations of log records other than `log.jsonl`."""

import importlib.util
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.runs.folder import RunFolder


def require_tensorboard() -> None:
    """Raise UserError if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs a package: pip install 'controlvae[tensorboard]'")


class TensorBoard:
    """TensorBoard event files in the run folder. A crash may take steps back: they are purged."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        last = folder.last_record()
        purge_step = last["step"] + 1 if last else 0
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=purge_step)

    def write(self, record: dict[str, Any]) -> None:
        """Write the numbers of one log record."""
        for name, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, record["step"])
        for latent, value in enumerate(record["kl_per_latent"], start=1):
            self._writer.add_scalar(f"kl_per_latent/{latent}", value, record["step"])

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
