"""Training speed of models side by side: records of measurements, and short new ones.

A record says how long a step of 1, 5 or 25 models takes on a device. In between, the time of a step
is linear in the number of models: a fixed part, and a part for each model.
"""

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from controlvae.lab.config import Experiment, preset
from controlvae.lab.config.serialization import from_dict, to_dict
from controlvae.lab.custom.engine import CustomEngine
from controlvae.lab.custom.task import CustomTask
from controlvae.lab.data.cache import cache_folder
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.device import pick_device
from controlvae.lab.engines.select import make_engine
from controlvae.lab.io import write_json

MAX_MODELS = 25  # side by side: more are not faster on the largest GPU
_GPU_COUNTS = (1, 5, 25)  # models to measure
_SECONDS = 1.0  # of measuring, for each number of models
_RECORD_FILE = "speeds.json"  # in the cache folder


@dataclass(frozen=True)
class SpeedLine:
    """Measurement of some models side by side."""

    models: int
    steps_per_second: float  # of each model
    memory_gib: float | None = None


@dataclass(frozen=True)
class Speed:
    """Speed of one kind of model on one kind of device.

    Attributes:
        lines: Measurements, by number of models.
        device: Name of the device.
        source: Where the measurement comes from.
        memory_limit: Memory of the device in GiB, if it is known.
    """

    lines: tuple[SpeedLine, ...]
    device: str
    source: str
    memory_limit: float | None = None

    def seconds_per_step(self, models: int) -> float:
        """Return the time of a step of this many models."""
        return _interpolate([(one.models, 1 / one.steps_per_second) for one in self.lines], models)

    def memory(self, models: int) -> float | None:
        """Return the memory of this many models in GiB, or None if it was not measured."""
        points = [(one.models, one.memory_gib) for one in self.lines]
        known = [(count, gib) for count, gib in points if gib is not None]
        return _interpolate(known, models) if known else None

    def fits(self, models: int, share: float = 1.0) -> bool:
        """Return True if this many models fit in memory.

        Args:
            models: Number of models.
            share: Share of the device's memory that a job has.
        """
        needed = self.memory(models)
        if needed is None or self.memory_limit is None:
            return True
        return needed < 0.9 * share * self.memory_limit


def find_speed(experiment: Experiment, device: str) -> Speed | None:
    """Return the record of a kind of model on a device, or None if there is none.

    Args:
        experiment: Experiment to train.
        device: Name of the device, or a part of a GPU's name such as `h200`.
    """
    key = _key(experiment)
    for name, record in _own_records().items():
        if name == f"{device} {key}":
            return from_record(record)
    for record in _shipped_records():
        if _names_device(record["device"], device) and _key(preset(record["preset"])) == key:
            return from_record(record)
    return None


def keep_speed(experiment: Experiment, device: str, speed: Speed) -> None:
    """Keep a measurement in the cache folder, for later plans.

    Args:
        experiment: Experiment that was measured.
        device: Name by which `find_speed` looks for it.
        speed: The measurement.
    """
    records = {**_own_records(), f"{device} {_key(experiment)}": to_record(speed)}
    write_json(cache_folder() / _RECORD_FILE, records)


def measure_speed(
    experiment: Experiment,
    device: torch.device,
    root: Path | None = None,
    task: CustomTask | None = None,
) -> Speed:
    """Train for a few seconds, and return how fast that was.

    On a CPU models side by side take turns, so one is measured.

    Args:
        experiment: Experiment to train.
        device: Device to measure.
        root: Data folder that is searched first.
        task: User-supplied model and data.
    """
    make = _engine_maker(experiment, device, root, task)
    counts = _GPU_COUNTS if device.type == "cuda" else (1,)
    lines = []
    for count in counts:
        training = experiment.training
        seeds = [replace(training, seed=training.seed + number) for number in range(count)]
        engine = make([replace(experiment, training=seed) for seed in seeds])
        lines.append(SpeedLine(count, _rate(engine, device), _memory(device)))
        del engine
    now = time.strftime("%Y-%m-%d")
    return Speed(tuple(lines), device_name(device), f"measured on {now}", _memory_limit(device))


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.machine()


def _interpolate(points: Sequence[tuple[int, float]], models: int) -> float:
    """Return a value that is linear between measurements.

    From a single one it is in proportion to the number of models. Fewer models than were measured
    count as much as the fewest measured: a stack of two needs most of the kernels of a stack of
    five.
    """
    points = sorted(points)
    first, last = points[0], points[-1]
    if len(points) == 1:
        return first[1] * models / first[0]
    if models <= first[0]:
        return first[1]
    for low, high in pairwise(points):
        if models <= high[0] or high is last:
            slope = (high[1] - low[1]) / (high[0] - low[0])
            return low[1] + slope * (models - low[0])
    raise AssertionError("unreachable")


def _engine_maker(
    experiment: Experiment, device: torch.device, root: Path | None, task: CustomTask | None
) -> Callable[[Sequence[Experiment]], Engine]:
    if task is not None:
        return lambda experiments: CustomEngine(
            task.make_trainers(experiments, device, lambda line: None),
            lambda line: None,
            capture=task.capture,
        )
    examples = load_dataset(experiment.data, root).to(device)
    return lambda experiments: make_engine(experiments, examples, device)


def _rate(engine: Engine, device: torch.device) -> float:
    """Return steps per second, after a warm-up."""
    engine.advance(2)
    steps = 1
    while True:
        began = time.perf_counter()
        engine.advance(steps)  # returns when the device has finished
        taken = time.perf_counter() - began
        if taken >= _SECONDS / 2:
            return steps / taken
        steps = max(steps + 1, int(steps * min(10.0, _SECONDS / max(taken, 1e-6))))


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**30
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def _memory_limit(device: torch.device) -> float | None:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / 2**30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def _key(experiment: Experiment) -> str:
    """Return a digest of what the speed depends on: not the seed, the law or the latents."""
    model = to_dict(experiment.model)
    model.pop("latents", None)
    training = experiment.training
    parts = [type(experiment.data).__name__, getattr(experiment.data, "size", None), model]
    parts += [to_dict(experiment.objective), training.batch, training.precision]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _names_device(full: str, wanted: str) -> bool:
    return bool(wanted) and wanted.lower() in full.lower()


@cache
def _shipped_records() -> list[dict[str, Any]]:
    text = (files("controlvae.lab.cluster") / "measured_speeds.json").read_text(encoding="utf-8")
    records: list[dict[str, Any]] = json.loads(text)
    return records


def _own_records() -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((cache_folder() / _RECORD_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return content


def from_record(record: dict[str, Any]) -> Speed:
    """Return the speed that `to_record` has written."""
    lines = tuple(SpeedLine(*line) for line in record["lines"])
    return Speed(lines, record["device"], record["source"], record.get("memory_limit"))


def to_record(speed: Speed) -> dict[str, Any]:
    """Return a speed as JSON values."""
    lines = [list(asdict(line).values()) for line in speed.lines]
    return {**asdict(speed), "lines": lines}


def main() -> None:
    """Measure the experiment on stdin, and print the record. Nodes run this for the submitter."""
    request = json.load(sys.stdin)
    experiment = from_dict(Experiment, request["experiment"])
    root = request["data_root"]
    speed = measure_speed(
        experiment, pick_device(request["device"]), None if root is None else Path(root)
    )
    print(json.dumps(to_record(speed)))


if __name__ == "__main__":
    main()
