"""Evaluation of the runs of `fresh_seeds.py` as they finish: the commands `measure` and `score`."""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import torch
from fresh_seeds_scores import (
    MEASURED,
    POSTERIORS,
    SCORED,
    SNAPSHOT,
    measure_run,
    measure_snapshots,
    score_run,
)

from controlvae.lab.data.registry import load_dataset
from controlvae.lab.runs.folder import RunFolder, find_runs

ENDED = ("finished", "diverged", "stopped")  # last event of a run that no process trains
SNAPSHOT_IMAGES = 100_000  # of MIG and RMIG of earlier steps


def measure_all(args: argparse.Namespace) -> None:
    """Measure every finished run that was not measured before, and the snapshots of all runs."""
    device, examples = torch.device(args.device), None
    snapshots = pending_runs(args, MEASURED, "trained", has_snapshots, wait=False)
    for folder in chain(snapshots, pending_runs(args, MEASURED, "trained", is_idle, args.wait)):
        if examples is None:
            examples = load_dataset(folder.experiment().data).to(device)
        try:
            measure_snapshots(folder, examples, device, min(args.images, SNAPSHOT_IMAGES))
            if is_idle(folder):
                measure_run(folder, examples, device, args.images)
        except (RuntimeError, ValueError, OSError) as error:
            print(f"{folder.path} was not measured: {error!r}")
    (args.runs / "measured").touch()


def score_all(args: argparse.Namespace) -> None:
    """Score the posteriors of every measured run on several CPU cores."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.workers, initializer=limit_to_one_core) as pool:
        results = [
            (folder.path, pool.apply_async(score_run, (folder.path,)))
            for folder in pending_runs(args, SCORED, "measured", has_posteriors, args.wait)
        ]
        for path, result in results:
            try:
                result.get()
            except Exception as error:
                print(f"{path} was not scored: {error!r}")


def pending_runs(
    args: argparse.Namespace,
    output: str,
    flag: str,
    is_ready: Callable[[RunFolder], bool],
    wait: bool,
) -> Iterator[RunFolder]:
    """Yield each ready run that lacks a file, once.

    Args:
        args: Parsed command line.
        output: File that the caller writes into a run's folder.
        flag: File whose existence says that no more runs will become ready.
        is_ready: Predicate of runs that can be processed.
        wait: Wait for more runs until the flag exists.
    """
    seen: set[Path] = set()
    while True:
        is_last_look = not wait or (args.runs / flag).exists()
        exist = any(args.runs.glob("*/seed-*/experiment.json"))
        ready = [
            run
            for run in (find_runs(args.runs) if exist else [])
            if run.path not in seen and not (run.path / output).exists() and is_ready(run)
        ]
        seen.update(run.path for run in ready)
        yield from ready
        if is_last_look and not ready:
            return
        time.sleep(0 if ready else 1)


def is_idle(folder: RunFolder) -> bool:
    """Return True if a run was trained and no process trains it any more."""
    events = folder.events()
    return bool(events) and events[-1]["event"] in ENDED


def has_snapshots(folder: RunFolder) -> bool:
    """Return True if a run has saved weights at an earlier step."""
    return any(folder.path.glob(SNAPSHOT.format(step="*")))


def has_posteriors(folder: RunFolder) -> bool:
    """Return True if the posteriors of a run were saved."""
    return (folder.path / POSTERIORS).exists()


def limit_to_one_core() -> None:
    """Restrict a scoring process to one core and a lower priority than training."""
    torch.set_num_threads(1)
    os.nice(10)
