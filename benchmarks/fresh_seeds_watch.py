"""Keep detached training processes running: the command `full` of `fresh_seeds.py`.

A training process outlives the command that started it. The next command finds it by the locks of
its run folders, and starts it again from its checkpoints if it has died.
"""

import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training

MAX_STARTS = 4  # of one process during one command
SECONDS_BETWEEN_STARTS = 10.0
SECONDS_TO_STOP = 60.0  # for the last checkpoint


@dataclass
class Trainer:
    """Runs of one stack and the process that trains them."""

    name: str
    folders: Sequence[RunFolder]
    start: Callable[[], subprocess.Popen[bytes]]
    log: Path  # output of the process
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    last_start: float = -math.inf

    def has_ended(self) -> bool:
        """Return True if each run finished or diverged."""
        return all(folder.has_ended() for folder in self.folders)

    def is_running(self) -> bool:
        """Return True if a process of this or an earlier command trains the runs."""
        if self.process is not None and self.process.poll() is None:
            return True
        return any(in_training(folder) for folder in self.folders)

    def step(self) -> int:
        """Return the step of the newest log line of the first run that has not ended."""
        folders = [folder for folder in self.folders if not folder.has_ended()]
        record = (folders or self.folders)[0].last_record()
        return 0 if record is None else int(record["step"])

    def keep_running(self) -> None:
        """Start the process if none is running, unless it has been started too often."""
        now = time.monotonic()
        if self.has_ended() or self.is_running() or self.starts == MAX_STARTS:
            return
        if now - self.last_start > SECONDS_BETWEEN_STARTS:
            if self.log.exists():  # says why the last process died
                print(self.log.read_text()[-500:])
            self.starts, self.last_start, self.process = self.starts + 1, now, self.start()
            print(f"{self.name}: started at step {self.step():,}", flush=True)


def keep_training(
    trainers: Sequence[Trainer], seconds: float, steps: int, report_every: float = 30.0
) -> bool:
    """Keep trainers running for some time and print their progress.

    Args:
        trainers: Stacks to train.
        seconds: Time after which the function returns. The processes continue.
        steps: Length of a run, for the remaining time.
        report_every: Seconds between two lines of progress.

    Returns:
        Whether all runs have ended.
    """
    began, reported = time.monotonic(), -report_every
    before: tuple[float, list[int]] | None = None
    while True:
        seconds_passed = time.monotonic() - began
        for trainer in trainers:
            trainer.keep_running()
        ended = all(trainer.has_ended() for trainer in trainers)
        is_over = ended or seconds_passed >= seconds
        if is_over or seconds_passed - reported >= report_every:
            reported, now = seconds_passed, (seconds_passed, [t.step() for t in trainers])
            print(describe(trainers, steps, before, now), flush=True)
            before = now
        if is_over:
            return ended
        time.sleep(min(1.0, max(0.0, seconds - seconds_passed)))


def describe(
    trainers: Sequence[Trainer],
    steps: int,
    before: tuple[float, list[int]] | None,
    now: tuple[float, list[int]],
) -> str:
    """Return a line with each stack's step, the total speed and the remaining time.

    Args:
        trainers: Stacks that are trained.
        steps: Length of a run.
        before: Time and step of each stack at the previous line.
        now: The same at this line.
    """
    seconds, reached = now
    states = [f"{t.name} {step:,}" for t, step in zip(trainers, reached, strict=True)]
    line = f"{seconds:.0f} s: {', '.join(states)}"
    if before is None or seconds <= before[0]:
        return line
    passed = seconds - before[0]
    speeds = [(step - old) / passed for step, old in zip(reached, before[1], strict=True)]
    total = sum(len(t.folders) * speed for t, speed in zip(trainers, speeds, strict=True))
    remaining = [
        (steps - step) / speed
        for step, speed in zip(reached, speeds, strict=True)
        if speed > 0 and step < steps
    ]
    left = f", {max(remaining):.0f} s left" if remaining else ""
    return f"{line}; {total:,.0f} seed-steps/s{left}"


def wait_until_stopped(trainers: Sequence[Trainer]) -> bool:
    """Wait until no process trains the runs, and return False if one still does."""
    began = time.monotonic()
    while any(trainer.is_running() for trainer in trainers):
        if time.monotonic() - began > SECONDS_TO_STOP:
            return False
        time.sleep(0.2)
    return True
