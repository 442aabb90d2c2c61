"""Where else log records can go besides `log.jsonl`."""

import importlib.util
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.runs.folder import RunFolder


def require_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs a package: pip install 'controlvae[tensorboard]'")


class TensorBoard:
    """TensorBoard event files in the run folder. Points of steps that a crash took back are dropped."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        last = folder.last_record()
        self._writer = SummaryWriter(
            str(folder.path / "tensorboard"), purge_step=last["step"] + 1 if last else 0
        )

    def write(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, record["step"])
        for latent, value in enumerate(record["kl_per_latent"], start=1):
            self._writer.add_scalar(f"kl_per_latent/{latent}", value, record["step"])

    def close(self) -> None:
        self._writer.close()
