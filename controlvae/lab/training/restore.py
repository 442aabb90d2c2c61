"""Restoring runs from their checkpoints, and recording when training starts and stops."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from controlvae.errors import UserError
from controlvae.lab.config.digest import config_digest
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.measurements import row_width
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.requests import pending_request, write_request
from controlvae.lab.training.loop import Run

_HAD_CHECKPOINTS = ("saved", "branched", "stopped", "resumed", "finished")  # events


class Session:
    """Context manager that resumes runs from their latest checkpoints and logs start and stop.

    The run folders are unlocked when the session ends, whatever ends it.

    >>> runs = [Run.open(folder) for folder in folders]
    >>> with Session(runs, engine, device="cpu"):
    ...     for progress in train_runs(runs, engine):
    ...         print(progress.step)
    """

    def __init__(self, runs: Sequence[Run], engine: Engine, device: str) -> None:
        self.runs, self.engine, self.device = runs, engine, device
        self.steps = runs[0].experiment.training.steps
        try:
            self.warnings = restore(runs, engine)
        except BaseException:
            self._close()
            raise

    @property
    def finished(self) -> bool:
        """True if no step is left to train."""
        return self.engine.step >= self.steps

    def __enter__(self) -> Self:
        event = "resumed" if self.engine.step else "started"
        ranks = getattr(self.engine, "ranks", 1)
        details = {"ranks": ranks} if ranks > 1 else {}
        try:
            for run in self.runs if not self.finished else ():
                run.logger.event(event, step=self.engine.step, device=self.device, **details)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._record_end()
        finally:
            self._close()

    def _record_end(self) -> None:
        """Log the end of each run whose last checkpoint is at the current step.

        A caller that leaves `train_runs` early resumes from an earlier checkpoint.
        """
        step = self.engine.step
        for run in self.runs:
            saved = checkpoint.latest_step(run.folder.checkpoints)
            if not run.folder.has_ended() and saved == step:
                run.logger.event("finished" if self.finished else "stopped", step=step)

    def _close(self) -> None:
        for run in self.runs:
            run.logger.close()


def restore(runs: Sequence[Run], engine: Engine) -> list[str]:
    """Restore the engine to the newest step with an intact checkpoint in every run.

    Returns:
        Warnings for the user.

    Raises:
        UserError: If a checkpoint does not belong to its run, or has been deleted.
    """
    warnings: list[str] = []
    for run in runs:
        _settle_repair(run)
    loaded = checkpoint.load_together([run.folder.checkpoints for run in runs])
    for run, (_, corrupt) in zip(runs, loaded, strict=True):
        for line in corrupt:
            run.logger.event("checkpoint passed over", detail=line)
            warnings.append(f"{run.folder.path}: {line}; using the previous checkpoint")
    for model, (run, (saved, _)) in enumerate(zip(runs, loaded, strict=True)):
        if saved is None:
            warnings += _restart_from_zero(run)
            continue
        warnings += _restore_run(run, engine, model, saved)
    return warnings


def _settle_repair(run: Run) -> None:
    """Move checkpoints away that the last repair has taken back.

    It is done here and not with the repair, so that a kill at any moment leaves a run that resumes.
    """
    changes = [one for one in run.folder.repairs() if one.experiment is not None]
    if changes:
        digest = config_digest(run.experiment)
        checkpoint.quarantine_replaced(run.folder.checkpoints, changes[-1].step, digest)


def _restart_from_zero(run: Run) -> list[str]:
    """Restart a run that was killed before its first checkpoint.

    A run that had checkpoints must not lose its log that way, so it is refused, unless a repair has
    taken it back to its start.
    """
    path = run.folder.path
    if run.logger.position == 0:
        return []
    names = [event["event"] for event in run.folder.events()]
    if _is_taken_back_to_start(run, names):
        run.logger.rewind(0)
        checkpoint.quarantine(run.folder.best, 0)
        return []
    if any(name in _HAD_CHECKPOINTS for name in names):
        raise UserError(
            f"{path} has a log but its checkpoints are gone; train again with another --run"
        )
    run.logger.rewind(0)
    checkpoint.quarantine(run.folder.best, 0)
    return [f"{path} was stopped before its first checkpoint; starting again"]


def _is_taken_back_to_start(run: Run, names: list[str]) -> bool:
    """Return True if the last repair started the run again, and it has saved nothing since."""
    changes = [one for one in run.folder.repairs() if one.experiment is not None]
    if not changes or changes[-1].step > 0 or "repaired" not in names:
        return False
    since = names[len(names) - names[::-1].index("repaired") :]
    return not any(name in _HAD_CHECKPOINTS for name in since)


def _restore_run(run: Run, engine: Engine, model: int, saved: checkpoint.Checkpoint) -> list[str]:
    """Restore a run from its checkpoint after verifying that the checkpoint belongs to it.

    Returns warnings for the user.
    """
    try:
        if not run.folder.accepts(saved.numbers["experiment"]):
            raise ValueError("it was written with other settings")
        if run.data and (saved.numbers.get("data") or run.data) != run.data:
            raise ValueError("its data has changed since training started")
        position, window = saved.numbers["log_position"], saved.tensors["window"]
        engine.restore(model, saved.step, {k: v for k, v in saved.tensors.items() if k != "window"})
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the checkpoint in {run.folder.path} does not fit its experiment.json: {reason}"
        ) from None
    # Later checkpoints are moved away before the log is cut, because they count its bytes.
    # Resumed training may choose other best weights, so later ones are moved away as well.
    checkpoint.quarantine(run.folder.checkpoints, saved.step)
    checkpoint.quarantine(run.folder.best, saved.step)
    run.logger.rewind(position)
    # Version 0.1 measured one column fewer for `BetaTC`. The next log line is then a mean over the
    # steps that follow.
    fits = window.shape[-1] == row_width(run.experiment)
    run.window = [window] if len(window) and fits else []
    run.threads = saved.numbers.get("threads")
    run.monitor.load_state_dict(saved.numbers)
    return _repeat_target_request(run, saved.step)


def _repeat_target_request(run: Run, step: int) -> list[str]:
    """Request a set point again that was applied after the restored checkpoint."""
    moves = [event for event in run.folder.events() if event["event"] == "target moved"]
    if not moves or moves[-1]["step"] <= step or pending_request(run.folder) is not None:
        return []
    target = moves[-1]["target"]
    write_request(run.folder, target)
    return [
        f"{run.folder.path}: its target was moved to {target:g} nats at step "
        f"{moves[-1]['step']:,}, after the checkpoint of step {step:,}; it is moved again"
    ]
