"""A sitting: runs taken up where their folders stand, and what begins and ends put on record."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from controlvae.lab.engines.base import Engine
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.training.loop import Run, restore


class Session:
    """Runs that are trained together now. Whatever ends it, their folders are free for others afterwards.

    >>> runs = [Run.open(folder) for folder in folders]
    >>> with Session(runs, engine, device="cpu"):
    ...     for glance in train(runs, engine):
    ...         print(glance.step)
    """

    def __init__(self, runs: Sequence[Run], engine: Engine, device: str) -> None:
        self.runs, self.engine, self.device = runs, engine, device
        self.steps = runs[0].experiment.training.steps
        try:
            self.notes = restore(runs, engine)  # for a person
        except BaseException:
            self._close()
            raise

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to train."""
        return self.engine.step >= self.steps

    def __enter__(self) -> Self:
        kind = "resumed" if self.engine.step else "started"
        try:
            for run in self.runs if not self.finished else ():
                run.journal.event(kind, step=self.engine.step, device=self.device)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._record_end()
        finally:
            self._close()

    def _record_end(self) -> None:
        """Of each run that stands where its last checkpoint is; who leaves `train` half-way goes on from before."""
        step = self.engine.step
        for run in self.runs:
            if not run.folder.ended() and latest_step(run.folder.checkpoints) == step:
                run.journal.event("finished" if self.finished else "stopped", step=step)

    def _close(self) -> None:
        for run in self.runs:
            run.journal.close()
