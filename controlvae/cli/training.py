"""`train` and `resume`: folders, signals, the bar and the words at the end."""

import math
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import typer

from controlvae.cli.bars import training_bar
from controlvae.cli.main import pick_device
from controlvae.control import TuningWarning
from controlvae.data.load import load
from controlvae.data.roots import data_roots
from controlvae.errors import UserError
from controlvae.experiments import RunFolder, override, preset
from controlvae.training import EagerEngine, Run, restore, train
from controlvae.training import loop as training_loop
from controlvae.training.loggers import TensorBoard


class How(NamedTuple):
    """Options that change how a run is carried out and nothing in what it computes."""

    device: torch.device
    time_limit: float
    checkpoint_every: float
    tensorboard: bool
    data_root: Path | None


def options(
    device: str, time_limit: str | None, checkpoint_every: str, tensorboard: bool, data_root: Path | None
) -> How:
    """The options, checked: before a run folder is made, so that a wrong one leaves nothing behind."""
    data_roots(data_root)
    limit = math.inf if time_limit is None else _seconds("--time-limit", time_limit)
    return How(pick_device(device), limit, _seconds("--checkpoint-every", checkpoint_every), tensorboard, data_root)


def create(name: str, sets: list[str], run: Path | None, seeds: int, command: str) -> list[RunFolder]:
    """The run folders of a `train` command, one per seed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TuningWarning)
        experiment = override(preset(name), sets)
    for message in {str(warning.message) for warning in caught if sets}:
        print(f"controlvae: note: {message}", file=sys.stderr)
    path = run or _free_folder(Path("runs") / name)
    first = experiment.training.seed
    folders = [RunFolder(path)] if seeds == 1 else [RunFolder(path / f"seed-{first + i}") for i in range(seeds)]
    for number, folder in enumerate(folders):
        seeded = replace(experiment, training=replace(experiment.training, seed=first + number))
        try:
            folder.create(seeded, command)
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder.path}: {error.strerror}") from None
    return folders


def go(folders: Sequence[RunFolder], how: How) -> None:
    """Trains from wherever the folders stand to the end."""
    runs = [Run.open(folder) for folder in folders]
    experiment = runs[0].experiment
    sinks = [TensorBoard(folder) for folder in folders] if how.tensorboard else []
    engine = EagerEngine([run.experiment for run in runs], load(experiment.data, how.data_root), how.device)
    for note in restore(runs, engine):
        print(f"controlvae: {note}", file=sys.stderr)
    steps, began = experiment.training.steps, engine.step
    home = folders[0].path if len(folders) == 1 else folders[0].path.parent
    if began >= steps:
        typer.echo(f"{home} is finished: step {steps:,}. See it with: controlvae report {home}")
        return
    for run in runs:
        run.journal.event("resumed" if began else "started", step=began, device=str(how.device))
    with _stop_signal() as stop, training_bar(experiment.name, began, steps) as show:
        limits = {"time_limit": how.time_limit, "checkpoint_every": how.checkpoint_every}
        for glance in train(runs, engine, **limits, stop=stop.is_set):
            show(glance)
            for sink, record in zip(sinks, glance.records, strict=False):
                if record is not None:
                    sink.write(record)
    for sink in sinks:
        sink.close()
    for run in runs:
        run.journal.event("finished" if engine.step >= steps else "stopped", step=engine.step)
        run.journal.close()
    _last_words(home, runs, engine.step, steps, interrupted=stop.is_set())


def _last_words(home: Path, runs: Sequence[Run], step: int, steps: int, interrupted: bool) -> None:
    for run in runs:
        if run.diverged_at is not None:
            print(f"controlvae: {training_loop.divergence(run)}", file=sys.stderr)
        elif run.out_of_reach:
            print(f"controlvae: {run.folder.path}: the target stayed out of reach, β at its bound; "
                  f"see the report", file=sys.stderr)  # fmt: skip
    if step < steps:
        typer.echo(f"stopped at step {step:,} of {steps:,}; go on with: controlvae resume {home}")
        raise typer.Exit(130 if interrupted else 0)
    typer.echo(f"finished at step {step:,}; see it with: controlvae report {home}")


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Ctrl-C or SIGTERM asks training to checkpoint and stop; a second one ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("\ncontrolvae: stopping after this step; again to leave at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _seconds(option: str, text: str) -> float:
    """`90s`, `9m`, `1.5h` or plain seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UserError(f"{option} takes 90s, 9m or 1.5h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _free_folder(path: Path) -> Path:
    """`runs/NAME`, or `runs/NAME-2` and so on where that is taken."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
