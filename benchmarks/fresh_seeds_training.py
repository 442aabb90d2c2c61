"""Train the run folders of one stack side by side, from their latest checkpoints."""

import math
import time
from collections.abc import Callable, Sequence

import torch
from fresh_seeds_scores import MEASURED, POSTERIORS, SCORED, save_snapshot

from controlvae.lab.data.registry import load_dataset
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training import Engine, Run, Session, make_engine, train_runs


def train_folders(
    folders: Sequence[RunFolder],
    device: str,
    *,
    time_limit: float = math.inf,
    checkpoint_every: float = 150.0,
    stop: Callable[[], bool] = lambda: False,
    snapshots: Sequence[int] = (),
    prepare: Callable[[Engine], None] | None = None,
) -> None:
    """Train all runs that have not ended, and print the progress every 15 seconds.

    Args:
        folders: Runs that differ in nothing but seed and law.
        device: Device to train on.
        time_limit: Seconds of training.
        checkpoint_every: Seconds between checkpoints.
        stop: Function that returns True if training should save and stop.
        snapshots: Steps whose weights are kept.
        prepare: Changes the engine before the first step of new runs.
    """
    folders = [folder for folder in folders if not folder.has_ended()]
    if not folders:
        return
    for folder in folders:
        for name in (MEASURED, POSTERIORS, SCORED):  # of the step where training was stopped
            (folder.path / name).unlink(missing_ok=True)
    where, started, reported = torch.device(device), time.monotonic(), 0.0
    examples = load_dataset(folders[0].experiment().data).to(where)
    runs = [Run.open(folder, examples.fingerprint()) for folder in folders]
    engine = make_engine([run.experiment for run in runs], examples, where)
    with Session(runs, engine, device) as session:
        first_step = engine.step
        for warning in session.warnings:
            print(warning)
        if prepare is not None and first_step == 0:
            prepare(engine)
        for progress in train_runs(
            runs, engine, time_limit=time_limit, checkpoint_every=checkpoint_every, stop=stop
        ):
            if progress.step in snapshots:
                for model, run in enumerate(runs):
                    save_snapshot(run.folder, progress.step, engine.snapshot(model))
            seconds = time.monotonic() - started
            if seconds - reported > 15:
                reported, speed = seconds, len(runs) * progress.steps_per_second
                print(f"{seconds:.0f} s: step {progress.step:,}, {speed:,.0f} seed-steps/s")
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s: step {first_step:,} to {engine.step:,}, {len(runs)} seeds")
