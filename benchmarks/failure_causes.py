"""Train seeds that fail to disentangle again, with one thing changed at a time.

    python benchmarks/failure_causes.py train runs/causes
    python benchmarks/fresh_seeds.py pack runs/causes packed
    python benchmarks/failure_causes_report.py results/disentangling --packed packed/runs.json.gz

Seeds 301 to 350 of `shapes2d-control-18` are known (`results/disentangling/fresh-seeds.md`): the
label-free rule flags ten of them at step 60,000. Each candidate below trains some of these seeds to
this step with one change. `train` runs its stacks in the order of `STACKS`, a few at a time; start
NVIDIA's MPS first. `train runs/causes first-beta-1 tf32` trains these two stacks only. It can be
stopped and started again.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch
from fresh_seeds_rules import RULE_STEP
from fresh_seeds_training import train_folders

from controlvae.lab.config import override, preset
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training import Engine

SEEDS = range(301, 351)
FLAGGED = (307, 309, 312, 318, 322, 325, 338, 341, 345, 347)  # S < 0.85 in `fresh-seeds.csv`
UNFLAGGED = tuple(seed for seed in SEEDS if seed not in FLAGGED)
SELECTED = tuple(sorted(FLAGGED + UNFLAGGED[:15]))  # a stack of 25 with all flagged seeds
# Seed of the initial weights by the seed of batches and noise: flagged and unflagged seeds
# exchange their weights in pairs, and five unflagged ones in a circle.
WEIGHT_SEEDS = {
    **dict(zip(FLAGGED, UNFLAGGED[:10], strict=True)),
    **dict(zip(UNFLAGGED[:10], FLAGGED, strict=True)),
    **dict(zip(UNFLAGGED[10:15], UNFLAGGED[11:15] + UNFLAGGED[10:11], strict=True)),
}
CONTROL, STAGGERED = "shapes2d-control-18", "shapes2d-staggered-18"


@dataclass(frozen=True)
class Stack:
    """Seeds of one candidate that one process trains."""

    candidate: str
    preset: str
    settings: tuple[str, ...]
    seeds: Sequence[int]


STACKS = {
    "tf32": Stack("tf32", CONTROL, ("training.precision=tf32",), FLAGGED),
    "latent-weights-1": Stack("latent-weights", STAGGERED, ("control.beta_init=none",), SEEDS[:25]),
    "latent-weights-2": Stack("latent-weights", STAGGERED, ("control.beta_init=none",), SEEDS[25:]),
    "first-beta-1": Stack("first-beta", CONTROL, ("control.beta_init=80",), SEEDS[:25]),
    "first-beta-2": Stack("first-beta", CONTROL, ("control.beta_init=80",), SEEDS[25:]),
    "exchanged": Stack("exchanged", CONTROL, (), SELECTED),
    "initialisation-1": Stack("initialisation", CONTROL, ("model.initial=normal",), SELECTED),
    "adam-1": Stack("adam", CONTROL, ("optimiser.beta2=0.99",), SELECTED),
    "initialisation-2": Stack("initialisation", CONTROL, ("model.initial=normal",), UNFLAGGED[15:]),
    "adam-2": Stack("adam", CONTROL, ("optimiser.beta2=0.99",), UNFLAGGED[15:]),
}


def main() -> None:
    """Train stacks, or one stack in this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("train", "stack"))
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("stacks", nargs="*", help=f"all, or some of {', '.join(STACKS)}")
    parser.add_argument("--steps", type=int, default=RULE_STEP)
    parser.add_argument("--processes", type=int, default=3, help="stacks trained at the same time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", action="append", default=[], help="further setting of all stacks")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    names = args.stacks or list(STACKS)
    if unknown := set(names) - set(STACKS):
        parser.error(f"unknown stacks: {', '.join(sorted(unknown))}; use {', '.join(STACKS)}")
    if args.command == "train":
        train_stacks(args, names)
    else:
        for name in names:
            train_stack(args, STACKS[name])


def train_stacks(args: argparse.Namespace, names: list[str]) -> None:
    """Train stacks in the order given, each in its own process, a few at a time."""
    waiting, running = list(names), dict[str, subprocess.Popen[bytes]]()
    started = time.monotonic()
    while waiting or running:
        while waiting and len(running) < args.processes:
            name = waiting.pop(0)
            running[name] = start_process(args, name)
            print(f"{time.monotonic() - started:.0f} s: {name} started", flush=True)
        time.sleep(0.5)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                seconds = time.monotonic() - started
                print(f"{seconds:.0f} s: {name} ended with {process.returncode}", flush=True)


def start_process(args: argparse.Namespace, name: str) -> subprocess.Popen[bytes]:
    """Start the training of one stack. Its output goes to a file next to the runs."""
    line = [sys.executable, "-u", __file__, "stack", str(args.runs), name]
    line += ["--steps", str(args.steps), "--device", args.device]
    for setting in args.set:
        line += ["--set", setting]
    with (args.runs / f"{name}.txt").open("ab") as log:
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def train_stack(args: argparse.Namespace, stack: Stack) -> None:
    """Train one stack of seeds, with exchanged initial weights if the candidate says so."""
    folders = list(create_runs(args, stack))

    def exchange(engine: Engine) -> None:
        exchange_weights(engine, stack.seeds)

    train_folders(
        folders,
        args.device,
        checkpoint_every=1e6,  # a stack takes minutes: only the last checkpoint is written
        prepare=exchange if stack.candidate == "exchanged" else None,
    )


def create_runs(args: argparse.Namespace, stack: Stack) -> Iterator[RunFolder]:
    """Yield the run folder of each seed, created if it does not exist."""
    base = override(preset(stack.preset), [*stack.settings, *args.set])
    for seed in stack.seeds:
        folder = RunFolder(args.runs / stack.candidate / f"seed-{seed}")
        if not folder.experiment_file.is_file():
            training = replace(base.training, steps=args.steps, seed=seed)
            folder.create(replace(base, training=training), " ".join(sys.argv))
        yield folder


def exchange_weights(engine: Engine, seeds: Sequence[int]) -> None:
    """Give each model the initial weights of another seed. Batches and noise stay its own.

    Args:
        engine: Engine at step 0, with a model per seed.
        seeds: Seed of each model.
    """
    initial = {seed: engine.snapshot(model) for model, seed in enumerate(seeds)}
    for model, seed in enumerate(seeds):
        engine.restore(model, 0, initial[WEIGHT_SEEDS[seed]])


if __name__ == "__main__":
    main()
