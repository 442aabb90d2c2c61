"""Weights & Biases, offline in the run folder unless the user chooses another mode."""

import os
from typing import Any

from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.trackers.base import (
    display_name,
    new_run_id,
    numbers,
    read_run_id,
    require_package,
    write_run_id,
)


class WandB:
    """Run of Weights & Biases, with the settings of the experiment as its config.

    It is offline, in `RUN/wandb`, unless `WANDB_MODE` is set. `WANDB_PROJECT` names the project. A
    resumed run has the same id, so the service continues it. The service keeps the first value of
    a step that comes twice after a crash.

    Args:
        folder: Run folder.
        project: Name of the project. The default is `WANDB_PROJECT`, or "controlvae".
        settings: Further arguments of `wandb.init`.
    """

    def __init__(self, folder: RunFolder, project: str | None = None, **settings: Any) -> None:
        import wandb

        run_id = read_run_id(folder, "wandb") or new_run_id()
        write_run_id(folder, "wandb", run_id)
        mode = os.environ.get("WANDB_MODE", "offline")
        options: dict[str, Any] = {
            "project": project or os.environ.get("WANDB_PROJECT", "controlvae"),
            "name": display_name(folder),
            "config": folder.manifest().get("experiment", {}),
            "dir": str(folder.path),
            "id": run_id,
            "resume": "allow",
            "mode": mode,
            # Runs train side by side in one process.
            "reinit": "create_new",
            # The progress bar is no output to record. An offline run has no page to announce.
            "settings": wandb.Settings(console="off", silent=mode == "offline"),
        }
        self._run = wandb.init(**{**options, **settings})

    @staticmethod
    def check() -> None:
        """Raise UserError if wandb is not installed."""
        require_package("wandb", "wandb")

    def write(self, record: dict[str, Any]) -> None:
        """Log the numbers of one record at its step."""
        self._run.log(numbers(record), step=record["step"])

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
