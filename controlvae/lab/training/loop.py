"""The training loop: a generator that advances an engine and writes down what it measured."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import Diverged, UserError
from controlvae.lab.config import Experiment
from controlvae.lab.config.digest import config_digest
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.measurements import first_non_finite_row, row_width, summarise_rows
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import RunLogger
from controlvae.lab.runs.requests import answer, ask_again, asked, target_in
from controlvae.lab.training.monitor import Monitor
from controlvae.lab.training.validation import Validator

_GLANCE_SECONDS = 0.2  # between looks at the clock, at Ctrl-C and at the bar


@dataclass
class Run:
    """One model's experiment, folder and log while it trains."""

    experiment: Experiment
    folder: RunFolder
    journal: RunLogger
    watch: Monitor
    window: list[Tensor] = field(default_factory=list)  # rows measured since the last log line
    diverged_at: int | None = None
    data: str = ""  # fingerprint of what it is trained on; a checkpoint keeps it

    @classmethod
    def open(cls, folder: RunFolder, data: str = "") -> "Run":
        journal = RunLogger(
            folder
        )  # first, for it locks the folder: nobody changes the settings any more
        experiment = folder.experiment()
        return cls(
            experiment, folder, journal, Monitor(experiment, folder.path, journal), data=data
        )


@dataclass(frozen=True)
class Progress:
    """A glance at training: where it is, the newest measurements, and the log lines written since the last one."""

    step: int
    latest: Tensor  # (models, columns)
    records: list[dict[str, Any] | None]  # a new log line for each model, where there is one
    steps_per_second: float
    news: list[str]  # what a person should hear of at once


def restore(runs: Sequence[Run], engine: Engine) -> list[str]:
    """Puts the engine at the newest step of which every run has a good checkpoint. Returns notes for a person."""
    notes: list[str] = []
    found = checkpoint.load_together([run.folder.checkpoints for run in runs])
    for run, (_, lines) in zip(runs, found, strict=True):
        for line in lines:
            run.journal.event("checkpoint passed over", detail=line)
            notes.append(f"{run.folder.path}: {line}; using the one before it")
    for model, (run, (saved, _)) in enumerate(zip(runs, found, strict=True)):
        if saved is None:
            notes += _restart_from_zero(run)
            continue
        notes += _restore_run(run, engine, model, saved)
    return notes


def _restart_from_zero(run: Run) -> list[str]:
    """A run killed before its first checkpoint begins anew; one that had checkpoints must not lose its log to that."""
    path = run.folder.path
    if run.journal.position == 0:
        return []
    if any(
        event["event"] in ("saved", "branched", "stopped", "resumed", "finished")
        for event in run.folder.events()
    ):
        raise UserError(
            f"{path} has a log but no checkpoint any more; to train it again, give train another --run"
        )
    run.journal.rewind(0)
    checkpoint.quarantine(run.folder.best, 0)
    return [f"{path} was stopped before its first checkpoint; starting again"]


def _restore_run(run: Run, engine: Engine, model: int, saved: checkpoint.Checkpoint) -> list[str]:
    """One run goes on from its checkpoint, which must be its own. Returns notes for a person."""
    try:
        if saved.numbers["experiment"] != config_digest(run.experiment):
            raise ValueError("it was written by other settings")
        if run.data and (saved.numbers.get("data") or run.data) != run.data:
            raise ValueError("its data is not what it was when training began")
        position, window = saved.numbers["log_position"], saved.tensors["window"]
        engine.restore(model, saved.step, {k: v for k, v in saved.tensors.items() if k != "window"})
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the checkpoint in {run.folder.path} does not fit its experiment.json: {reason}"
        ) from None
    checkpoint.quarantine(
        run.folder.checkpoints, saved.step
    )  # before the log is cut, which they are ahead of
    checkpoint.quarantine(run.folder.best, saved.step)  # it goes on from here, and may go elsewhere
    run.journal.rewind(position)
    run.window = [window] if len(window) else []
    run.watch.load_state_dict(saved.numbers)
    return _repeat_target_request(run, saved.step)


def _repeat_target_request(run: Run, step: int) -> list[str]:
    """A set point that was moved after the checkpoint training goes on from is asked for once more."""
    moved = [event for event in run.folder.events() if event["event"] == "target moved"]
    if not moved or moved[-1]["step"] <= step or asked(run.folder) is not None:
        return []
    target = moved[-1]["target"]
    ask_again(run.folder, target)
    return [
        f"{run.folder.path}: its target was moved to {target:g} nats at step {moved[-1]['step']:,}, which is later "
        f"than the checkpoint of step {step:,}; it is moved again"
    ]


def train(
    runs: Sequence[Run],
    engine: Engine,
    *,
    time_limit: float = math.inf,
    checkpoint_every: float = 30.0,
    stop: Callable[[], bool] = lambda: False,
    validator: Validator | None = None,
) -> Iterator[Progress]:
    """Trains to the end, or until `stop` or the time limit; the run is then resumable at exactly this step.

    `time_limit` and `checkpoint_every` are in seconds, and change nothing in what is computed.
    """
    settings, began = runs[0].experiment.training, time.monotonic()
    saving, chunk, speed = _Saving(checkpoint_every), 1, 0.0
    while engine.step < settings.steps:
        before = time.monotonic()
        to_log_line = settings.log_every - engine.step % settings.log_every
        chunk = min(chunk, to_log_line, settings.steps - engine.step)
        rows = engine.advance(chunk)
        elapsed = max(time.monotonic() - before, 1e-9)
        speed = chunk / elapsed if speed == 0 else 0.8 * speed + 0.2 * chunk / elapsed
        records = _log_rows(runs, engine.step, rows)
        if validator is not None and (validator.due(engine.step) or engine.step == settings.steps):
            for model, run in enumerate(runs):
                if run.diverged_at is None:
                    validator.look(run.folder, run.experiment, engine.step, engine.snapshot(model))
        yield Progress(
            engine.step, rows[-1], records, speed, [line for run in runs for line in run.watch.news]
        )
        for run in runs:
            run.watch.news = []
        chunk = max(1, min(2 * chunk, int(_GLANCE_SECONDS * speed)))
        _stop_if_all_diverged(runs)
        if (
            engine.step == settings.steps
        ):  # the last checkpoint is due whoever asks to stop, and no request any more
            break
        ending = stop() or time.monotonic() - began > time_limit
        if ending or saving.due():
            saving.save(runs, engine)
            _stop_if_all_diverged(runs)
        if ending:
            return
        _apply_target_requests(runs, engine)
    saving.save(runs, engine)
    _stop_if_all_diverged(runs)


class _Saving:
    """Checkpoints as often as asked for, yet for at most two per cent of the time."""

    def __init__(self, every: float) -> None:
        self.every = every
        self.last, self.cost = time.monotonic(), 0.0

    def due(self) -> bool:
        return time.monotonic() - self.last > max(self.every, 50 * self.cost)

    def save(self, runs: Sequence[Run], engine: Engine) -> None:
        before = time.monotonic()
        _save(runs, engine)
        self.last = time.monotonic()
        self.cost = self.last - before


def _apply_target_requests(runs: Sequence[Run], engine: Engine) -> None:
    """Moves the set points that a person asked to move. What is asked is forgotten once a checkpoint knows it."""
    taken = []
    for model, run in enumerate(runs):
        text = asked(run.folder) if run.diverged_at is None else None
        if text is None:
            continue
        taken.append((run.folder, text))
        try:
            target = target_in(text, run.experiment.control)
        except ValueError as error:
            run.journal.event("request refused", step=engine.step, reason=str(error))
            continue
        engine.set_target(model, target)
        run.watch.target_moved()
        run.journal.event("target moved", step=engine.step, target=target)
        run.watch.news.append(
            f"{run.folder.path}: target moved to {target:g} nats at step {engine.step:,}"
        )
    if taken:
        _save(runs, engine)
    for folder, text in taken:
        answer(folder, text)


def _stop_if_all_diverged(runs: Sequence[Run]) -> None:
    if all(run.diverged_at is not None for run in runs):
        raise Diverged(divergence(runs[0]))


def _log_rows(runs: Sequence[Run], step: int, rows: Tensor) -> list[dict[str, Any] | None]:
    """Sorts measurements (steps, models, columns) into the runs' logs. Returns the new line of each run, if any."""
    records: list[dict[str, Any] | None] = [None] * len(runs)
    for model, run in enumerate(runs):
        if run.diverged_at is not None:
            continue
        mine = rows[:, model]
        bad = first_non_finite_row(mine)
        if bad is not None:
            _mark_diverged(run, step - len(mine) + bad + 1)
            continue
        run.window.append(mine)
        if step % run.experiment.training.log_every == 0 or step == run.experiment.training.steps:
            record = summarise_rows(step, torch.cat(run.window), run.experiment)
            run.window = []
            run.journal.record(record)
            run.watch.see(record)
            records[model] = record
    return records


def _mark_diverged(run: Run, step: int) -> None:
    """A model that diverged is left at its last good checkpoint; its neighbours go on."""
    run.diverged_at = step
    run.journal.event("diverged", step=step)


def divergence(run: Run) -> str:
    last = checkpoint.latest_step(run.folder.checkpoints)
    good = (
        f"the last good checkpoint is step {last}"
        if last is not None
        else "no checkpoint was written yet"
    )
    return (
        f"{run.folder.path}: the loss became NaN or infinite at step {run.diverged_at}; {good}. Try a smaller "
        f"optimiser.rate, a smaller control.ki, or inputs scaled to [0, 1]"
    )


def _save(runs: Sequence[Run], engine: Engine) -> None:
    for model, run in enumerate(runs):
        if run.diverged_at is not None:
            continue  # what is there is the last good one
        tensors = engine.snapshot(model)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            _mark_diverged(
                run, engine.step
            )  # the loss of this step was still finite, its gradient was not
            continue
        empty = torch.empty(0, row_width(run.experiment), dtype=torch.float64)
        tensors["window"] = torch.cat([empty, *run.window])
        run.journal.sync()
        numbers = {
            "experiment": config_digest(run.experiment),
            "data": run.data,
            "log_position": run.journal.position,
            **run.watch.counts(),
        }
        first = checkpoint.latest_step(run.folder.checkpoints) is None
        checkpoint.save(
            run.folder.checkpoints, checkpoint.Checkpoint(engine.step, tensors, numbers)
        )
        if first:  # from here on a folder without checkpoints has lost them
            run.journal.event("saved", step=engine.step)
