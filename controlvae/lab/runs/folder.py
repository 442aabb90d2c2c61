"""A run folder: the names of its files, the experiment in it, and how its log is read.

Everything that happens to a run is in its folder. Training writes it; evaluation, reports and pages only read it.
"""

import contextlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from controlvae import __version__
from controlvae.errors import UserError, shell_command
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.config.serialization import from_dict, to_dict
from controlvae.lab.io import PART, write_json

_LOGGED = ("step", "kl", "beta", "reconstruction")  # numbers that every line of a log has
_TAIL = 1 << 16  # bytes: a line of the log is hardly ever longer
FORMAT = 1  # of experiment.json; a folder of a later format is refused with a word, an earlier one still opens


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def experiment_file(self) -> Path:
        return self.path / "experiment.json"

    @property
    def log_file(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoint"

    @property
    def validation_file(self) -> Path:
        return self.path / "validation.jsonl"

    @property
    def best(self) -> Path:
        """The checkpoint that did best on the validation examples."""
        return self.path / "best"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.json"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def lock_file(self) -> Path:
        """Locked by the process that trains the run."""
        return self.path / "lock"

    @property
    def asked_file(self) -> Path:
        """What a person asks of a run in training."""
        return self.path / "asked.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def must_be_free(self, else_do: str = "choose another --run") -> None:
        """A run never goes into a folder that holds something."""
        if self.path.is_file():
            raise UserError(f"{self.path} is a file; {else_do}")
        if self.path.exists() and any(
            not inside.name.startswith(PART) for inside in self.path.iterdir()
        ):
            there = (
                f", or: {shell_command('resume', self.path)}"
                if self.experiment_file.is_file()
                else ""
            )
            raise UserError(f"{self.path} is not empty; {else_do}{there}")

    def create(self, experiment: Experiment, command: str, option: str = "--run") -> None:
        """Makes the folder and writes everything needed to run it again. `option` is how a command takes another."""
        self.must_be_free(f"choose another {option}")
        self.write(experiment, command)

    def write(self, experiment: Experiment, command: str) -> None:
        """The same, in place of what a run that never began has written."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "experiment": to_dict(experiment),
            "command": command,
            "versions": {"python": platform.python_version(), **_versions()},
        }
        write_json(self.experiment_file, content)

    def withdraw(self) -> None:
        """Takes a run that never began away again, and the folder of its seeds where no other is in it."""
        with contextlib.suppress(OSError):
            for file in (
                self.log_file,
                self.events_file,
                self.lock_file,
                self.experiment_file,
            ):  # a run to the last
                file.unlink(missing_ok=True)
            for folder in (self.path, self.path.parent):
                folder.rmdir()

    def manifest(self) -> dict[str, Any]:
        """experiment.json as it stands."""
        if not self.path.is_dir():
            raise UserError(
                f"no run folder at {self.path}"
                + (", which is a file" if self.path.exists() else "")
            )
        if not self.experiment_file.is_file():
            inner = sorted(
                str(p.parent.relative_to(self.path)) for p in self.path.rglob("experiment.json")
            )
            hint = (
                f"; name one of its runs: {', '.join(inner)}"
                if inner
                else "; a run folder holds an experiment.json"
            )
            raise UserError(f"{self.path} is not a run folder{hint}")
        try:
            content = json.loads(self.experiment_file.read_text(encoding="utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise UserError(f"{self.experiment_file} is damaged: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise UserError(
                f"{self.experiment_file} is not an experiment file: it has no format number"
            )
        if content["format"] > FORMAT:
            raise UserError(
                f"{self.experiment_file} has format {content['format']}, written by a later controlvae; "
                f"this one reads up to {FORMAT}: pip install --upgrade controlvae"
            )
        return content

    def experiment(self) -> Experiment:
        plain = self.manifest().get("experiment", {})
        try:
            return from_dict(Experiment, plain)
        except UserError as error:
            raise UserError(f"{self.experiment_file}: {error}") from None

    def records(self) -> list[dict[str, Any]]:
        """The log, one record per line; a line torn by a crash is not a record."""
        return list(_lines(self.log_file, numbers=_LOGGED))

    def last_record(self) -> dict[str, Any] | None:
        """The last line of the log, without reading all of it where that can be helped."""
        if not self.log_file.is_file():
            return None
        with self.log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            *_, last, _torn = [
                b"",
                *file.read().split(b"\n"),
            ]  # after the last line break comes what a crash tore
        record = as_record(last, _LOGGED)
        if record is None:  # longer than the tail, or damaged: the whole log tells which
            record = next(reversed(self.records()), None)
        return record

    def validations(self) -> list[dict[str, Any]]:
        """Looks at the validation examples, one record per line."""
        return list(_lines(self.validation_file, numbers=("step", "elbo")))

    def events(self) -> list[dict[str, Any]]:
        """What happened, but for what a crash took back: later than the step from which training then went on."""
        standing: list[dict[str, Any]] = []
        for event in _lines(self.events_file, words=("event",)):
            if event["event"] in ("started", "resumed"):
                step = event.get("step", 0)
                standing = [earlier for earlier in standing if earlier.get("step", 0) <= step]
            standing.append(event)
        return standing

    def metrics(self) -> dict[str, Any] | None:
        """What `evaluate` measured; None where it has not been run."""
        if not self.metrics_file.is_file():
            return None
        try:
            loaded: dict[str, Any] = json.loads(self.metrics_file.read_text(encoding="utf-8"))
            loaded["step"]
        except (ValueError, TypeError, KeyError) as error:
            anew = f"delete it, then: {shell_command('evaluate', self.path)}"
            raise UserError(f"{self.metrics_file} is damaged ({error}); {anew}") from None
        return loaded

    def evaluated_step(self) -> int | None:
        """The step whose metrics are in the folder, if any."""
        metrics = self.metrics()
        return None if metrics is None else int(metrics["step"])

    def ended(self) -> bool:
        """Whether training has nothing more to do here: it came to its end, or the model diverged."""
        events = [event["event"] for event in self.events()]
        return bool(events) and events[-1] in ("finished", "diverged")


def last_tenth(records: Sequence[Mapping[str, Any]], column: str) -> float:
    """The mean of a column over the last tenth of the steps; a line of the log is the least there is."""
    return mean_between(records, column, 0.9, 1.0)


def mean_between(
    records: Sequence[Mapping[str, Any]], column: str, start: float, end: float
) -> float:
    """The mean of a column between two shares of a log's steps, each line by as many of its steps as lie there."""
    steps = [0, *(record["step"] for record in records)]
    first, last = start * steps[-1], end * steps[-1]
    shared = [min(last, now) - max(first, before) for before, now in pairwise(steps)]
    there = [
        (many, record[column]) for many, record in zip(shared, records, strict=True) if many > 0
    ]
    return math.fsum(many * value for many, value in there) / math.fsum(many for many, _ in there)


def find_runs(path: Path) -> list[RunFolder]:
    """The run at a path, or, for a folder of seeds or of runs, all runs inside it."""
    if path.is_dir() and not (path / "experiment.json").is_file():
        inner = sorted(_runs_below(path))
        if inner:
            return [RunFolder(folder) for folder in inner]
    run = RunFolder(path)
    run.manifest()
    return [run]


def _runs_below(path: Path) -> Iterator[Path]:
    """Each run once, whether it lies there or is linked to."""
    seen = set()
    for folder, inner, files in os.walk(path, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # links may go round
            inner.clear()
            continue
        seen.add(real)
        inner.sort()
        if "experiment.json" in files:
            yield Path(folder)


def look_up(metrics: Mapping[str, Any], path: str) -> float | None:
    """A number in nested metrics by its dotted path; None where it was not measured."""
    value = entry(metrics, path)
    return value if value is None or isinstance(value, int) else float(value)


def entry(metrics: Mapping[str, Any], path: str) -> Any:
    """Whatever stands in nested metrics at a dotted path; None where nothing does."""
    value: Any = metrics
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def as_record(
    line: bytes, numbers: tuple[str, ...] = (), words: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """A line of JSON with the numbers and words it must have; None where it is not that."""
    try:
        record: dict[str, Any] = json.loads(line)
        good = all(isinstance(record[name], int | float) for name in numbers)
        return record if good and all(isinstance(record[name], str) for name in words) else None
    except (ValueError, KeyError, TypeError):
        return None


def _lines(
    path: Path, numbers: tuple[str, ...] = (), words: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines. A torn last line is passed over; any other bad line is an error."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        record = as_record(line, numbers, words)
        if record is None and number == len(lines) and not line.endswith(b"\n"):
            return
        if record is None:
            raise UserError(f"{path} line {number} is not a record; was the file edited?")
        yield record


def _versions() -> dict[str, str]:
    found = {"controlvae": __version__}
    for package in ("torch", "numpy", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
