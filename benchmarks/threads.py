"""Measure training speed next to other work, with fixed numbers of CPU threads and with `auto`.

    python benchmarks/threads.py --seconds 12 --repeats 3

Trains `shapes2d-quick` alone, as two trainings at once, and next to a busy Python process that
starts before or after the training. A speed is that of the whole run of 3,000 steps, including the
time in which the number of threads is chosen, at the rate of the measured seconds. The goals are
ratios to the best fixed number: 0.95 alone, 0.8 next to work that was there first, 0.4 next to work
that comes later. Of two trainings that start at once each may be the later work for the other, so
the goal of the slower one is 0.4 and that of the faster one 0.8.

The column `others` has the largest number of cores that processes outside the benchmark used during
a measurement. Rows are comparable only if it is small.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from controlvae.lab.config import Experiment, preset
from controlvae.lab.engines.threads import available_cores
from controlvae.lab.training.display import Display, ShowProgress

PRESET = "shapes2d-quick"
_SECONDS_UNTIL_LOAD = 3.0  # of training, before the later work comes
_BUSY_LOOP = "n = 0\nwhile True:\n    n += 1"


class Timeline(NamedTuple):
    """Times of the system's monotonic clock at which a training began and took its steps."""

    began: float
    updates: list[tuple[float, int]]  # time and step
    threads: int

    def speed(self, after: float = 0.0) -> float:
        """Return steps per second of the whole run, from its rate after a time."""
        (first, _), *_ = self.updates
        window = [update for update in self.updates if update[0] >= after]
        (start, step), (end, last) = window[0], window[-1]
        steps = preset(PRESET).training.steps
        return steps / (first - self.began + steps * (end - start) / (last - step))


class _Recorder(Display):
    """Display that records times. Messages about the data come right before the training."""

    def __init__(self) -> None:
        self.began = 0.0
        self.updates: list[tuple[float, int]] = []
        self.threads = 0

    def note(self, line: str) -> None:
        """Record the first message as the beginning."""
        if not self.began:
            self.began = time.monotonic()
            print("began", flush=True)

    @contextmanager
    def training(self, experiments: Sequence[Experiment], start: int) -> Iterator[ShowProgress]:
        """Yield a function that records the time of a step."""
        self.threads = torch.get_num_threads()
        yield lambda progress: self.updates.append((time.monotonic(), progress.step))


def train(threads: str, seconds: float) -> None:
    """Train in this process and print the timeline as JSON."""
    from controlvae.lab.api.train import RunOptions, start_training

    recorder = _Recorder()
    options = RunOptions.parse("cpu", seconds, progress=recorder, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        start_training(PRESET, options=options, run=Path(folder) / "run")
    print(json.dumps([recorder.began, recorder.updates, recorder.threads]))


class _Training:
    """Training in another process."""

    def __init__(self, threads: str, seconds: float, environment: dict[str, str]) -> None:
        words = [sys.executable, __file__, "--train", threads, "--seconds", str(seconds)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def wait_for_start(self) -> None:
        """Return when the training begins."""
        self.output.readline()

    def timeline(self) -> Timeline:
        """Wait for the end and return the timeline."""
        last = self.output.read().splitlines()[-1]
        if self.process.wait() != 0:
            raise RuntimeError("a training has failed; see its message above")
        return Timeline(*json.loads(last))


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy within this context."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY_LOOP])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _foreign_seconds() -> float:
    """Return the CPU seconds of processes that are not part of this benchmark, so far."""
    user, nice, system, _idle, _wait, irq, soft_irq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    total = (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return total - sum(usage.ru_utime + usage.ru_stime for usage in usages)


Start = Callable[[], _Training]


def alone(start: Start) -> dict[str, Timeline]:
    """Train without other work."""
    return {"alone": start().timeline()}


def two_at_once(start: Start) -> dict[str, Timeline]:
    """Train two runs that start at the same time."""
    trainings = [start(), start()]
    for training in trainings:
        training.wait_for_start()
    slower, faster = sorted(
        (training.timeline() for training in trainings), key=lambda each: each.speed()
    )
    return {"two at once, slower": slower, "two at once, faster": faster}


def busy_before(start: Start) -> dict[str, Timeline]:
    """Train next to work that was there first."""
    with busy_process():
        time.sleep(0.5)
        return {"busy process before": start().timeline()}


def busy_after(start: Start) -> dict[str, Timeline]:
    """Train next to work that comes later. Only the time next to it counts."""
    training = start()
    training.wait_for_start()
    time.sleep(_SECONDS_UNTIL_LOAD)
    with busy_process():
        loaded = time.monotonic()
        began, updates, threads = training.timeline()
    choosing = updates[0][0] - began
    updates = [update for update in updates if update[0] >= loaded]
    return {"busy process after": Timeline(updates[0][0] - choosing, updates, threads)}


SCENES = (alone, two_at_once, busy_before, busy_after)
GOALS = {
    "alone": 0.95,
    "two at once, slower": 0.4,
    "two at once, faster": 0.8,
    "busy process before": 0.8,
    "busy process after": 0.4,
}


def measure(seconds: float, repeats: int, environment: dict[str, str]) -> None:
    """Run every scene with every setting, in turns, and print the medians.

    Args:
        seconds: Training time of each measurement.
        repeats: Number of measurements, of which the median counts.
        environment: Environment variables of the trainings.
    """
    settings = ["1", str(available_cores()), "auto"]
    speeds: dict[str, dict[str, list[float]]] = {
        name: {setting: [] for setting in settings} for name in GOALS
    }
    chosen: dict[str, list[int]] = {name: [] for name in GOALS}
    others = dict.fromkeys(GOALS, 0.0)
    for _ in range(repeats):
        for scene in SCENES:
            for setting in settings:

                def start(setting: str = setting) -> _Training:
                    return _Training(setting, seconds, environment)

                began, foreign = time.monotonic(), _foreign_seconds()
                timelines = scene(start)
                load = (_foreign_seconds() - foreign) / (time.monotonic() - began)
                for name, timeline in timelines.items():
                    others[name] = max(others[name], load)
                    speeds[name][setting].append(timeline.speed())
                    if setting == "auto":
                        chosen[name].append(timeline.threads)
                    line = f"# {name}, {setting}: {timeline.speed():.1f} steps/s"
                    print(f"{line}, others {load:.2f} cores", file=sys.stderr, flush=True)
    _print_table(settings, speeds, chosen, others)


def _print_table(
    settings: list[str],
    speeds: dict[str, dict[str, list[float]]],
    chosen: dict[str, list[int]],
    others: dict[str, float],
) -> None:
    print(f"{PRESET} on {platform.machine()}, {available_cores()} cores, torch {torch.__version__}")
    heads = [f"{setting} thr." if setting != "auto" else "auto" for setting in settings]
    print(f"{'steps/s':22}", *(f"{head:>8}" for head in heads), "  chosen   others  ratio  goal")
    for name, goal in GOALS.items():
        medians = [statistics.median(speeds[name][setting]) for setting in settings]
        ratio = medians[-1] / max(medians[:-1])
        numbers = ",".join(map(str, chosen[name]))
        verdict = "pass" if ratio >= goal else "miss"
        cells = " ".join(f"{median:8.1f}" for median in medians)
        print(
            f"{name:22} {cells}   {numbers:8} {others[name]:6.2f} {ratio:6.2f}  {goal:.2f} {verdict}"
        )


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="time of each training")
    parser.add_argument("--repeats", type=int, default=3, help="measurements per median")
    parser.add_argument("--spin", default="10000", help="GOMP_SPINCOUNT, as the command line sets")
    parser.add_argument("--train", metavar="THREADS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train, options.seconds)
        return
    own = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    if options.spin:
        environment["GOMP_SPINCOUNT"] = options.spin
    measure(options.seconds, options.repeats, environment)


if __name__ == "__main__":
    main()
