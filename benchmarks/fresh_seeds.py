"""Train fresh seeds of several presets to an early step and score them.

    python benchmarks/fresh_seeds.py all runs/fresh shapes2d-control-18:301-350
    python benchmarks/fresh_seeds.py pack runs/fresh packed

The command `all` runs `train`, `measure` and `score` at the same time:

train    trains stacks of seeds. Several stacks share the GPU; start NVIDIA's MPS first.
measure  computes MIG, RMIG and the ELBO of each finished run on the GPU and saves its posteriors.
score    computes DCI, SAP, the FactorVAE and β-VAE scores and modularity on CPU cores.

A run is its preset except for `training.steps`. Targets and per-latent KL weights depend on the
step only, so it equals the first part of the full run. Each command can be stopped and started
again: finished work is not repeated. `fresh_seeds_report.py` turns the packed runs into a table
and a figure.
"""

import argparse
import gzip
import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch
from fresh_seeds_scores import MEASURED, POSTERIORS, SCORED, measure_run, score_run

from controlvae.lab.config import preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.training import Run, Session, make_engine, train_runs

ENDED = ("finished", "diverged", "stopped")  # last event of a run that no process trains
LOGGED = ("step", "kl", "target", "beta", "reconstruction")
SHARED_OPTIONS = ("steps", "log_every", "stack", "workers", "images", "device")


class Stack(NamedTuple):
    """Seeds of one preset that one process trains."""

    preset: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.preset}:{self.first}-{self.last}"


def main() -> None:
    """Run one command, or all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands: dict[str, Callable[[argparse.Namespace], None]] = {
        "all": run_all,
        "train": train_all,
        "stack": train_stack,
        "measure": measure_all,
        "score": score_all,
        "pack": pack,
    }
    parser.add_argument("command", choices=commands)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument(
        "rest",
        nargs="*",
        help="PRESET:FIRST-LAST or PRESET:FIRST-LAST:STACK; the output folder of `pack`",
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--log-every", type=int, default=500)
    parser.add_argument("--stack", type=int, default=25, help="seeds per process")
    parser.add_argument("--processes", type=int, default=3, help="stacks trained at the same time")
    parser.add_argument("--workers", type=int, default=8, help="CPU cores that compute scores")
    parser.add_argument("--images", type=int, default=100_000, help="images of MIG and RMIG")
    parser.add_argument(
        "--time-limit", type=float, default=math.inf, help="seconds of training; stops cleanly"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--wait", action="store_true", help="measure and score: continue until training has ended"
    )
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    commands[args.command](args)


def run_all(args: argparse.Namespace) -> None:
    """Train, measure and score at the same time."""
    for flag in ("trained", "measured"):
        (args.runs / flag).unlink(missing_ok=True)
    others = [start_process(args, command, ["--wait"]) for command in ("measure", "score")]
    train_all(args)
    for other in others:
        other.wait()


def train_all(args: argparse.Namespace) -> None:
    """Train all stacks in the order given, a few at a time."""
    (args.runs / "trained").unlink(missing_ok=True)
    started, waiting = time.monotonic(), list(split_stacks(args))
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        remaining = args.time_limit - (time.monotonic() - started)
        while waiting and len(running) < args.processes and remaining > 0:
            limit = [] if math.isinf(remaining) else ["--time-limit", f"{remaining:.0f}"]
            running.append(start_process(args, "stack", limit, str(waiting.pop(0))))
        if not running:
            break
        time.sleep(0.5)
        running = [process for process in running if process.poll() is None]
    (args.runs / "trained").touch()


def split_stacks(args: argparse.Namespace) -> Iterator[Stack]:
    """Yield the stacks of all presets on the command line."""
    for text in args.rest:
        stack, *size = parse_stack(text)
        count = size[0] or args.stack
        for first in range(stack.first, stack.last + 1, count):
            yield stack._replace(first=first, last=min(stack.last, first + count - 1))


def parse_stack(text: str) -> tuple[Stack, int | None]:
    """Parse PRESET:FIRST-LAST[:STACK] into seeds and the size of a stack."""
    name, seeds, *size = text.split(":")
    first, last = seeds.split("-")
    return Stack(name, int(first), int(last)), int(size[0]) if size else None


def start_process(
    args: argparse.Namespace, command: str, options: list[str], *rest: str
) -> subprocess.Popen[bytes]:
    """Start a command in another process with the same settings.

    Args:
        args: Parsed command line of this process.
        command: Command to run.
        options: Further options.
        rest: Further positional arguments.
    """
    for name in SHARED_OPTIONS:
        options = [*options, f"--{name.replace('_', '-')}", str(getattr(args, name))]
    name = "-".join((command, *rest)).replace(":", "-")
    with (args.runs / f"{name}.txt").open("ab") as log:
        line = [sys.executable, "-u", __file__, command, str(args.runs), *rest, *options]
        return subprocess.Popen(line, stdout=log, stderr=log)


def train_stack(args: argparse.Namespace) -> None:
    """Train one stack of seeds, from the latest checkpoints of its runs."""
    stack, _ = parse_stack(args.rest[0])
    folders = [folder for folder in create_runs(args, stack) if not folder.has_ended()]
    if not folders:
        return
    device, started, reported = torch.device(args.device), time.monotonic(), 0.0
    examples = load_dataset(folders[0].experiment().data).to(device)
    runs = [Run.open(folder, examples.fingerprint()) for folder in folders]
    engine = make_engine([run.experiment for run in runs], examples, device)
    with Session(runs, engine, str(device)) as session:
        first_step = engine.step
        for warning in session.warnings:
            print(warning)
        limit = args.time_limit
        for progress in train_runs(runs, engine, time_limit=limit, checkpoint_every=150.0):
            seconds = time.monotonic() - started
            if seconds - reported > 15:
                reported, speed = seconds, len(runs) * progress.steps_per_second
                print(f"{seconds:.0f} s: step {progress.step:,}, {speed:,.0f} seed-steps/s")
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s: step {first_step:,} to {engine.step:,}, {len(runs)} seeds")


def create_runs(args: argparse.Namespace, stack: Stack) -> Iterator[RunFolder]:
    """Yield the run folder of each seed, created if it does not exist."""
    base = preset(stack.preset)
    for seed in range(stack.first, stack.last + 1):
        training = replace(base.training, steps=args.steps, log_every=args.log_every, seed=seed)
        folder = RunFolder(args.runs / stack.preset / f"seed-{seed}")
        if not folder.experiment_file.is_file():
            folder.create(replace(base, training=training), " ".join(sys.argv))
        yield folder


def measure_all(args: argparse.Namespace) -> None:
    """Measure every finished run that was not measured before."""
    device, examples = torch.device(args.device), None
    for folder in pending_runs(args, MEASURED, "trained", is_idle):
        if examples is None:
            examples = load_dataset(folder.experiment().data).to(device)
        try:
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
            for folder in pending_runs(args, SCORED, "measured", has_posteriors)
        ]
        for path, result in results:
            try:
                result.get()
            except Exception as error:
                print(f"{path} was not scored: {error!r}")


def pending_runs(
    args: argparse.Namespace, output: str, flag: str, is_ready: Callable[[RunFolder], bool]
) -> Iterator[RunFolder]:
    """Yield each ready run that lacks a file, once. Wait for more runs with `--wait`.

    Args:
        args: Parsed command line.
        output: File that the caller writes into a run's folder.
        flag: File whose existence says that no more runs will become ready.
        is_ready: Predicate of runs that can be processed.
    """
    seen: set[Path] = set()
    while True:
        is_last_look = not args.wait or (args.runs / flag).exists()
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


def has_posteriors(folder: RunFolder) -> bool:
    """Return True if the posteriors of a run were saved."""
    return (folder.path / POSTERIORS).exists()


def limit_to_one_core() -> None:
    """Restrict a scoring process to one core and a lower priority than training."""
    torch.set_num_threads(1)
    os.nice(10)


def pack(args: argparse.Namespace) -> None:
    """Write logs, measurements and scores of all runs to `runs.json.gz`."""
    target = Path(args.rest[0])
    target.mkdir(parents=True, exist_ok=True)
    packed = []
    for folder in find_runs(args.runs):
        run: dict[str, Any] = {
            "preset": folder.path.parent.name,
            "seed": int(folder.path.name.removeprefix("seed-")),
            "versions": folder.manifest()["versions"],
            "log": [shorten_record(record) for record in folder.records()],
            "events": folder.events(),
        }
        for key, name in (("gpu", MEASURED), ("cpu", SCORED)):
            if (folder.path / name).exists():
                run[key] = json.loads((folder.path / name).read_text())
        packed.append(run)
    with gzip.open(target / "runs.json.gz", "wt") as file:
        json.dump(packed, file)
    measured, scored = (sum(key in run for run in packed) for key in ("gpu", "cpu"))
    print(f"{len(packed)} runs, {measured} measured, {scored} scored")


def shorten_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a log line that the report uses, rounded to six digits."""
    rounded = {
        name: float(f"{value:.6g}") if isinstance(value := record[name], float) else value
        for name in LOGGED
    }
    nats = [float(f"{value:.4g}") for value in record["kl_per_latent"]]
    return {**rounded, "kl_per_latent": nats}


if __name__ == "__main__":
    main()
