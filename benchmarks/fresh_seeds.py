"""Train fresh seeds of several presets, to an early step or to the end, and score them.

    python benchmarks/fresh_seeds.py all runs/fresh shapes2d-control-18:301-350
    python benchmarks/fresh_seeds.py pack runs/fresh packed

The command `all` runs `train`, `measure` and `score` at the same time:

train    trains stacks of seeds. Several stacks share the GPU; start NVIDIA's MPS first.
measure  computes MIG, RMIG and the ELBO of each finished run on the GPU and saves its posteriors.
score    computes DCI, SAP, the FactorVAE and β-VAE scores and modularity on CPU cores.

A run is its preset except for `training.steps` and what `--set` changes. Targets and per-latent KL
weights depend on the step only, so it equals the first part of the full run. Each command can be
stopped and started again: finished work is not repeated.

The command `full` is for long runs on a machine whose commands have a time limit. It starts all
stacks as detached processes, watches them for `--seconds` and returns while they continue. Call
it again to watch them further; stacks that died are started again from their checkpoints. With
`--stop` it measures and scores runs as they finish, and stops the others at the end:

    python benchmarks/fresh_seeds.py full runs/full shapes2d-control-18:301-310:5 \\
      --steps 1500000 --snapshot 100000 --images 737280 --seconds 500 --stop --pack packed --weights

`separation` prints the label-free statistic S of each run. `unpack` creates run folders from a
pack with weights. `fresh_seeds_report.py` and `fresh_seeds_full_report.py` turn packs into tables
and figures.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch
from fresh_seeds_evaluation import measure_all, score_all
from fresh_seeds_pack import identify, pack_runs, unpack_runs
from fresh_seeds_rules import MIN_SEPARATION, RULE_STEP, separation
from fresh_seeds_training import train_folders
from fresh_seeds_watch import Trainer, keep_training, wait_until_stopped

from controlvae.lab.config import override, preset
from controlvae.lab.runs.folder import RunFolder, find_runs

SHARED_OPTIONS = (
    *("steps", "log_every", "stack", "workers", "images", "device"),
    *("checkpoint_every", "set", "snapshot"),
)


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
        "full": train_detached,
        "pack": lambda args: pack_runs(args.runs, Path(args.rest[0]), args.weights),
        "unpack": lambda args: unpack_runs(Path(args.rest[0]), args.runs),
        "separation": print_separations,
    }
    parser.add_argument("command", choices=commands)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument(
        "rest",
        nargs="*",
        help="PRESET:FIRST-LAST or PRESET:FIRST-LAST:STACK; the folder of `pack` and `unpack`",
    )
    add_options(parser)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    commands[args.command](args)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all commands."""
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
    parser.add_argument("--set", action="append", default=[], help="setting, part.field=value")
    parser.add_argument("--checkpoint-every", type=float, default=150.0, help="seconds")
    parser.add_argument(
        "--snapshot", action="append", default=[], type=int, help="step whose weights are kept"
    )
    parser.add_argument("--seconds", type=float, default=500.0, help="full: time to watch")
    parser.add_argument("--stop", action="store_true", help="full: evaluate, then stop training")
    parser.add_argument("--pack", type=Path, help="full: folder to pack the runs into at the end")
    parser.add_argument("--weights", action="store_true", help="pack weights as well")


def run_all(args: argparse.Namespace) -> None:
    """Train, measure and score at the same time."""
    evaluators = start_evaluation(args)
    train_all(args)
    for evaluator in evaluators:
        evaluator.wait()


def start_evaluation(args: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Start processes that measure and score runs as they finish."""
    for flag in ("trained", "measured"):
        (args.runs / flag).unlink(missing_ok=True)
    return [start_process(args, command, ["--wait"]) for command in ("measure", "score")]


def train_detached(args: argparse.Namespace) -> None:
    """Start or resume all stacks at once, watch them, and stop them at the end with `--stop`."""
    (args.runs / "stop").unlink(missing_ok=True)
    evaluators = start_evaluation(args) if args.stop else []
    trainers = [
        Trainer(
            str(stack),
            list(create_runs(args, stack)),
            partial(start_process, args, "stack", [], str(stack), detached=True),
            log_file(args.runs, "stack", str(stack)),
        )
        for stack in split_stacks(args)
    ]
    keep_training(trainers, args.seconds, args.steps)
    if args.stop:
        (args.runs / "stop").touch()
        if not wait_until_stopped(trainers):
            print("training did not stop; its last checkpoint is used")
        (args.runs / "trained").touch()
    if args.pack:
        pack_runs(args.runs, args.pack, args.weights)
    for evaluator in evaluators:
        evaluator.wait()
    if args.pack and evaluators:
        pack_runs(args.runs, args.pack, args.weights)


def train_all(args: argparse.Namespace) -> None:
    """Train all stacks in the order given, a few at a time."""
    for flag in ("trained", "stop"):
        (args.runs / flag).unlink(missing_ok=True)
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
    args: argparse.Namespace,
    command: str,
    options: list[str],
    *rest: str,
    detached: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command in another process with the same settings.

    Args:
        args: Parsed command line of this process.
        command: Command to run.
        options: Further options.
        rest: Further positional arguments.
        detached: Start a new session, so that the process outlives this one.
    """
    for name in SHARED_OPTIONS:
        value = getattr(args, name)
        for one in value if isinstance(value, list) else [value]:
            options = [*options, f"--{name.replace('_', '-')}", str(one)]
    with log_file(args.runs, command, *rest).open("ab") as log:
        line = [sys.executable, "-u", __file__, command, str(args.runs), *rest, *options]
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=detached,
        )


def log_file(runs: Path, *words: str) -> Path:
    """Return the file for the output of a command in another process."""
    return runs / f"{'-'.join(words).replace(':', '-')}.txt"


def train_stack(args: argparse.Namespace) -> None:
    """Train one stack of seeds, from the latest checkpoints of its runs."""
    stack, _ = parse_stack(args.rest[0])
    train_folders(
        list(create_runs(args, stack)),
        args.device,
        time_limit=args.time_limit,
        checkpoint_every=args.checkpoint_every,
        stop=(args.runs / "stop").exists,
        snapshots=args.snapshot,
    )


def create_runs(args: argparse.Namespace, stack: Stack) -> Iterator[RunFolder]:
    """Yield the run folder of each seed, created if it does not exist."""
    base = override(preset(stack.preset), args.set)
    for seed in range(stack.first, stack.last + 1):
        training = replace(base.training, steps=args.steps, log_every=args.log_every, seed=seed)
        folder = RunFolder(args.runs / stack.preset / f"seed-{seed}")
        if not folder.experiment_file.is_file():
            folder.create(replace(base, training=training), " ".join(sys.argv))
        yield folder


def print_separations(args: argparse.Namespace) -> None:
    """Print S of each run at the step of the label-free rule, and the number of flagged runs."""
    flagged: dict[str, list[bool]] = {}
    for folder in find_runs(args.runs):
        run = identify(folder)
        lines = {record["step"]: record["kl_per_latent"] for record in folder.records()}
        if RULE_STEP in lines:
            value = separation(lines[RULE_STEP])
            flagged.setdefault(run["preset"], []).append(value < MIN_SEPARATION)
            print(f"{run['preset']} {run['seed']}: S = {value:.3f}")
    for name, flags in flagged.items():
        print(f"{name}: {sum(flags)} of {len(flags)} have S < {MIN_SEPARATION}")


if __name__ == "__main__":
    main()
