"""Training loop: a generator that advances an engine, writes logs and saves checkpoints."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import Diverged
from controlvae.lab.config import CustomModel, Experiment
from controlvae.lab.config.digest import config_digest
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.measurements import (
    first_non_finite_row,
    row_to_dict,
    row_width,
    summarise_rows,
)
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import RunLogger
from controlvae.lab.runs.requests import clear_request, parse_target, pending_request
from controlvae.lab.training.monitor import Monitor
from controlvae.lab.training.repair.settings import CHECKPOINTS_KEPT
from controlvae.lab.training.repair.symptoms import Symptom
from controlvae.lab.training.repair.watch import Watch
from controlvae.lab.training.validation import Validator

_DIVERGED = "the loss became NaN or infinite"
_SECONDS_BETWEEN_UPDATES = 0.2  # of the clock, of signals and of the progress bar


@dataclass
class Run:
    """Experiment, folder, log and monitor of one model during training."""

    experiment: Experiment
    folder: RunFolder
    logger: RunLogger
    monitor: Monitor
    window: list[Tensor] = field(default_factory=list)  # rows measured since the last log line
    diverged_at: int | None = None
    divergence: tuple[str, str] = (_DIVERGED, "")  # what happened, and the cause if it is known
    data: str = ""  # fingerprint of the training data, saved in checkpoints
    threads: int | None = None  # of the CPU, saved in checkpoints; None if never chosen
    watch: Watch | None = None  # looks for symptoms, if the run repairs itself
    symptom: Symptom | None = None  # why the run was stopped, if it can be repaired

    @classmethod
    def open(cls, folder: RunFolder, data: str = "") -> "Run":
        """Lock a run folder for training and read its experiment.

        Args:
            folder: Run folder with an `experiment.json`.
            data: Fingerprint of the training data.
        """
        # The logger locks the folder. The settings are read afterwards, so nobody changes them.
        logger = RunLogger(folder)
        experiment = folder.experiment()
        monitor = Monitor(experiment, folder.path, logger)
        return cls(experiment, folder, logger, monitor, data=data)


@dataclass(frozen=True)
class Progress:
    """Progress update yielded by `train_runs()`."""

    step: int
    latest: Tensor  # (models, columns): the newest measurements
    records: list[dict[str, Any] | None]  # the new log line of each model, if there is one
    steps_per_second: float
    messages: list[str]  # warnings for the user


def train_runs(
    runs: Sequence[Run],
    engine: Engine,
    *,
    time_limit: float = math.inf,
    checkpoint_every: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
    validator: Validator | None = None,
    save_at_start: bool = False,
) -> Iterator[Progress]:
    """Train until the last step, the time limit or a stop request.

    The runs can then be resumed at exactly this step.

    Args:
        runs: Opened runs, one per model of the engine.
        engine: Engine at the step of the runs' checkpoints.
        time_limit: Seconds to train for. It does not affect the result.
        checkpoint_every: Seconds between checkpoints. It does not affect the result.
        stop: Function that returns True if training should save and stop.
        validator: Measures validation examples, if there are any.
        save_at_start: Save a checkpoint of step 0, because the initial weights are the user's.

    Yields:
        A progress update every fraction of a second and at every log line.

    Raises:
        Diverged: If every model has diverged.
    """
    settings, began = runs[0].experiment.training, time.monotonic()
    saving, chunk, speed = _CheckpointTimer(checkpoint_every), 1, 0.0
    if save_at_start and engine.step == 0:
        saving.save(runs, engine)
    while engine.step < settings.steps:
        before = time.monotonic()
        to_log_line = settings.log_every - engine.step % settings.log_every
        chunk = min(chunk, to_log_line, settings.steps - engine.step)
        rows = engine.advance(chunk)
        elapsed = max(time.monotonic() - before, 1e-9)
        speed = chunk / elapsed if speed == 0 else 0.8 * speed + 0.2 * chunk / elapsed
        records = _log_rows(runs, engine, rows)
        if validator is not None and (validator.due(engine.step) or engine.step == settings.steps):
            _validate(runs, engine, validator)
        messages = [line for run in runs for line in run.monitor.messages]
        for run in runs:
            run.logger.report(engine.step, speed)
        yield Progress(engine.step, rows[-1], records, speed, messages)
        for run in runs:
            run.monitor.messages = []
        chunk = max(1, min(2 * chunk, int(_SECONDS_BETWEEN_UPDATES * speed)))
        _raise_if_all_diverged(runs)
        # After the last step, the last checkpoint is due even if a stop was requested, and
        # set-point requests are too late.
        if engine.step == settings.steps:
            break
        ending = stop() or time.monotonic() - began > time_limit
        if ending or saving.due():
            saving.save(runs, engine)
            _raise_if_all_diverged(runs)
        if ending:
            return
        _apply_target_requests(runs, engine)
    saving.save(runs, engine)
    _raise_if_all_diverged(runs)


def divergence_message(run: Run) -> str:
    """Return a line that says when a run diverged and what to try."""
    last = checkpoint.latest_step(run.folder.checkpoints)
    good = (
        "no checkpoint exists yet" if last is None else f"the last good checkpoint is step {last}"
    )
    what, cause = run.divergence
    if run.symptom is not None and run.symptom.kind != "non-finite loss":
        return f"{run.folder.path}: {what} at step {run.diverged_at}; {good}"
    cure = "a smaller optimiser.rate, a smaller control.ki, or inputs scaled to [0, 1]"
    if isinstance(run.experiment.model, CustomModel):
        cure = "a smaller learning_rate, clip=1.0, a clamped log_variance, or data within [-1, 1]"
    advice = f"Try {cure}"
    if cause:
        what, advice = f"{what}, because {cause},", "Fill or drop such examples"
    return f"{run.folder.path}: {what} at step {run.diverged_at}; {good}. {advice}"


class _CheckpointTimer:
    """Saves checkpoints at an interval, but for at most two per cent of the time."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.last, self.cost = time.monotonic(), 0.0

    def due(self) -> bool:
        return time.monotonic() - self.last > max(self.every, 50 * self.cost)

    def save(self, runs: Sequence[Run], engine: Engine) -> None:
        before = time.monotonic()
        _save_checkpoints(runs, engine)
        self.last = time.monotonic()
        self.cost = self.last - before


def _validate(runs: Sequence[Run], engine: Engine, validator: Validator) -> None:
    for model, run in enumerate(runs):
        if run.diverged_at is None:
            validator.look(run.folder, run.experiment, engine.step, engine.snapshot(model))


def _apply_target_requests(runs: Sequence[Run], engine: Engine) -> None:
    """Apply pending set-point requests. A request is deleted once a checkpoint contains it."""
    applied = []
    for model, run in enumerate(runs):
        text = pending_request(run.folder) if run.diverged_at is None else None
        if text is None:
            continue
        applied.append((run.folder, text))
        try:
            target = parse_target(text, run.experiment)
        except ValueError as error:
            run.logger.event("request refused", step=engine.step, reason=str(error))
            continue
        engine.set_target(model, target)
        run.monitor.target_moved()
        run.logger.event("target moved", step=engine.step, target=target)
        run.monitor.messages.append(
            f"{run.folder.path}: target moved to {target:g} nats at step {engine.step:,}"
        )
    if applied:
        _save_checkpoints(runs, engine)
    for folder, text in applied:
        clear_request(folder, text)


def _raise_if_all_diverged(runs: Sequence[Run]) -> None:
    if all(run.diverged_at is not None for run in runs):
        raise Diverged(divergence_message(runs[0]))


def _log_rows(runs: Sequence[Run], engine: Engine, rows: Tensor) -> list[dict[str, Any] | None]:
    """Add measurements (steps, models, columns) to the logs. Return the new line of each run."""
    step = engine.step
    records: list[dict[str, Any] | None] = [None] * len(runs)
    for model, run in enumerate(runs):
        if run.diverged_at is not None:
            continue
        own_rows = rows[:, model]
        bad = first_non_finite_row(own_rows)
        if bad is not None:
            _mark_diverged(run, step - len(own_rows) + bad + 1)
            values = row_to_dict(own_rows[bad], run.experiment)
            number = step - len(own_rows) + bad
            run.divergence = _name_divergence(engine, model, number, values)
            if run.watch is not None:
                what = run.divergence[0]
                run.symptom = run.watch.explain_non_finite(engine, model, number, what)
            continue
        run.window.append(own_rows)
        if step % run.experiment.training.log_every == 0 or step == run.experiment.training.steps:
            window = torch.cat(run.window)
            record = summarise_rows(step, window, run.experiment)
            run.window = []
            run.logger.record(record)
            run.monitor.check(record)
            records[model] = record
            if run.watch is not None:
                _stop_if_sick(run, run.watch.check(record, window, engine, model), step)
    return records


def _stop_if_sick(run: Run, symptom: Symptom | None, step: int) -> None:
    """Leave a run that goes wrong at its last good checkpoint. The other runs continue."""
    if symptom is not None:
        run.symptom = symptom
        run.diverged_at = step
        run.divergence = f"{symptom.kind} ({symptom.evidence})", ""
        run.logger.event("symptom", step=step, symptom=symptom.kind, evidence=symptom.evidence)


def _mark_diverged(run: Run, step: int) -> None:
    """Leave a diverged model at its last good checkpoint. The other models continue."""
    run.diverged_at = step
    run.logger.event("diverged", step=step)


def _name_divergence(
    engine: Engine, model: int, step: int, row: dict[str, float]
) -> tuple[str, str]:
    """Return which term became NaN or infinite, and the example that caused it, if one did.

    Args:
        engine: Engine that took the step.
        model: Index of the model.
        step: Number of the step, counted from zero.
        row: Measurements of the step.
    """
    bad = [name for name in ("reconstruction", "kl", "beta") if not math.isfinite(row[name])]
    what = f"the {bad[0]} became NaN or infinite" if len(bad) == 1 else _DIVERGED
    find_bad_example = getattr(engine, "find_bad_example", None)  # of user-supplied data
    return what, "" if find_bad_example is None else find_bad_example(model, step)


def _save_checkpoints(runs: Sequence[Run], engine: Engine) -> None:
    for model, run in enumerate(runs):
        if run.diverged_at is not None:
            continue  # the checkpoint on disk is the last good one
        tensors = engine.snapshot(model)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            # The loss of this step was still finite, but its gradient was not.
            _mark_diverged(run, engine.step)
            run.divergence = "the gradient became NaN or infinite", ""
            if run.watch is not None:
                what = run.divergence[0]
                run.symptom = run.watch.explain_non_finite(engine, model, engine.step - 1, what)
            continue
        empty = torch.empty(0, row_width(run.experiment), dtype=torch.float64)
        tensors["window"] = torch.cat([empty, *run.window])
        run.logger.sync()
        numbers = {
            "experiment": config_digest(run.experiment),
            "data": run.data,
            "log_position": run.logger.position,
            **run.monitor.counts(),
        }
        if run.threads is not None:
            numbers["threads"] = run.threads
        first = checkpoint.latest_step(run.folder.checkpoints) is None
        saved = checkpoint.Checkpoint(engine.step, tensors, numbers)
        if run.watch is None:
            checkpoint.save(run.folder.checkpoints, saved)
        else:
            checkpoint.save(run.folder.checkpoints, saved, CHECKPOINTS_KEPT)
        if first:  # from now on, a folder without checkpoints has lost them
            run.logger.event("saved", step=engine.step)
