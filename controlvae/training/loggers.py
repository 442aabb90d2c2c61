"""Where else log records can go besides `log.jsonl`."""

from typing import Any

from controlvae.errors import UserError
from controlvae.experiments import RunFolder


class TensorBoard:
    """TensorBoard event files in the run folder."""

    def __init__(self, folder: RunFolder) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tensorboard needs a package: pip install 'controlvae[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder.path / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, record["step"])
        for latent, value in enumerate(record["kl_per_latent"], start=1):
            self._writer.add_scalar(f"kl_per_latent/{latent}", value, record["step"])

    def close(self) -> None:
        self._writer.close()
