"""Run folders: the names of their files, the experiment in them, and reading of their logs.

Everything that happens to a run is in its folder. Training writes it. Evaluation, reports and the
dashboard read it.
"""

import contextlib
import math
import os
import platform
import re
import shutil
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
from controlvae.lab.reading import open_file
from controlvae.lab.runs.records import (
    LOG_COLUMNS,
    check_lengths,
    is_event,
    is_finite,
    is_log_record,
    is_number,
    parse_record,
    read_json_object,
    read_records,
    with_columns,
)
from controlvae.lab.runs.repairs import (
    RepairRecord,
    accepted_digests,
    read_repairs,
    repaired_experiment,
)

# Format of experiment.json. Earlier formats are read, later ones are refused with a message.
FORMAT = 1
_OWN_FOLDERS = ("best", "checkpoint", "claims", "figures")  # of a run; they hold no runs
_TAIL_BYTES = 1 << 16  # longer than nearly every line of a log


@dataclass(frozen=True)
class RunFolder:
    """Files of one run."""

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
        """Checkpoint with the best ELBO on the validation examples."""
        return self.path / "best"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.json"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def lock_file(self) -> Path:
        """File that the training process locks."""
        return self.path / "lock"

    @property
    def claims(self) -> Path:
        """Claims of the processes that train the run, for machines that share the folder."""
        return self.path / "claims"

    @property
    def request_file(self) -> Path:
        """Set-point change request for a run in training."""
        return self.path / "request.json"

    @property
    def old_request_file(self) -> Path:
        """Request file of versions before 0.2."""
        return self.path / "asked.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def require_empty(self, advice: str = "choose another --run") -> None:
        """Raise UserError if the folder holds anything. A run never goes into such a folder."""
        if self.path.is_file():
            raise UserError(f"{self.path} is a file; {advice}")
        if not self.path.exists():
            return
        if any(not inside.name.startswith(PART) for inside in self.path.iterdir()):
            if self.experiment_file.is_file():
                advice += f", or: {shell_command('resume', self.path)}"
            raise UserError(f"{self.path} is not empty; {advice}")

    def create(
        self,
        experiment: Experiment,
        command: str,
        option: str = "--run",
        code: str = "",
        job: str = "",
    ) -> None:
        """Create the folder and write everything needed to repeat the run.

        Args:
            experiment: Experiment of the run.
            command: Shell command that repeats it.
            option: Option that selects another folder, for messages.
            code: File and name of a user-supplied task.
            job: Name of a job of several processes, which continues its run when it is restarted.

        Raises:
            UserError: If the folder holds something.
        """
        self.require_empty(f"choose another {option}")
        self.write(experiment, command, code, job)

    def write(self, experiment: Experiment, command: str, code: str = "", job: str = "") -> None:
        """Write `experiment.json`, replacing that of a run that never started.

        Args:
            experiment: Experiment of the run.
            command: Shell command that repeats it.
            code: File and name of a user-supplied task.
            job: Name of a job of several processes.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "experiment": to_dict(experiment),
            "command": command,
            **({"code": code} if code else {}),
            **({"job": job} if job else {}),
            "versions": {"python": platform.python_version(), **_versions()},
        }
        write_json(self.experiment_file, content)

    def withdraw(self) -> None:
        """Delete a run that never started, and the folder of its seeds if that is empty."""
        files = (self.log_file, self.events_file, self.lock_file, self.experiment_file)
        with contextlib.suppress(OSError):
            for file in files:  # experiment.json last: it is a run as long as it has one
                file.unlink(missing_ok=True)
            shutil.rmtree(self.claims, ignore_errors=True)
            for folder in (self.path, self.path.parent):
                folder.rmdir()

    def manifest(self) -> dict[str, Any]:
        """Return the content of `experiment.json`.

        Raises:
            UserError: If this is not a run folder, or its file is corrupt or of a later version.
        """
        if not self.path.is_dir():
            kind = ", which is a file" if self.path.exists() else ""
            raise UserError(f"no run folder at {self.path}{kind}")
        if not self.experiment_file.is_file():
            files = self.path.rglob("experiment.json")
            inner = sorted(str(file.parent.relative_to(self.path)) for file in files)
            hint = "a run folder holds an experiment.json"
            if inner:
                hint = f"name one of its runs: {', '.join(inner)}"
            raise UserError(f"{self.path} is not a run folder; {hint}")
        content = read_json_object(self.experiment_file, "restore it, or train in another folder")
        if not isinstance(content.get("format"), int):
            raise UserError(f"{self.experiment_file} is not an experiment file: no format number")
        if content["format"] > FORMAT:
            raise UserError(
                f"{self.experiment_file} has format {content['format']} of a later controlvae, "
                f"this one reads up to {FORMAT}; pip install --upgrade controlvae"
            )
        return content

    def experiment(self) -> Experiment:
        """Return the experiment of the run, as it is after its repairs."""
        return repaired_experiment(self.path, self.first_experiment())

    def first_experiment(self) -> Experiment:
        """Return the experiment that the run was started with."""
        plain = self.manifest().get("experiment", {})
        try:
            return from_dict(Experiment, plain)
        except UserError as error:
            raise UserError(f"{self.experiment_file}: {error}") from None

    def repairs(self) -> list[RepairRecord]:
        """Return the repairs of the run, oldest first."""
        return read_repairs(self.path)

    def accepts(self, digest: str) -> bool:
        """Return True if a checkpoint with this digest of its settings belongs to the run."""
        return digest in accepted_digests(self.path, self.first_experiment())

    def records(self) -> list[dict[str, Any]]:
        """Return the log, one record per line. A line torn by a crash is skipped."""
        records = read_records(self.log_file, is_log_record, numbers=LOG_COLUMNS)
        return check_lengths([with_columns(record) for record in records], self.log_file)

    def last_record(self) -> dict[str, Any] | None:
        """Return the last line of the log, without reading all of it if possible."""
        if not self.log_file.is_file():
            return None
        with open_file(self.log_file) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            # After the last line break comes what a crash has torn.
            *_, last, _torn = [b"", *file.read().split(b"\n")]
        record = parse_record(last, LOG_COLUMNS)
        if record is None or not is_log_record(
            record
        ):  # longer than the tail, or corrupt: the whole log shows which
            record = next(reversed(self.records()), None)
        return None if record is None else with_columns(record)

    def validations(self) -> list[dict[str, Any]]:
        """Return the validation results, one record per line."""
        columns = ("step", "elbo")
        return list(read_records(self.validation_file, lambda record: True, numbers=columns))

    def events(self) -> list[dict[str, Any]]:
        """Return the events, without those of steps that a crash or a repair took back."""
        valid: list[dict[str, Any]] = []
        for event in read_records(self.events_file, is_event, texts=("event",)):
            if event["event"] in ("started", "resumed"):
                step = event.get("step", 0)
                valid = [
                    earlier
                    for earlier in valid
                    if earlier.get("step", 0) <= step or earlier["event"] == "repaired"
                ]
            valid.append(event)
        return valid

    def metrics(self) -> dict[str, Any] | None:
        """Return the results of `evaluate`, or None if the run has not been evaluated."""
        if not self.metrics_file.is_file():
            return None
        advice = f"delete it, then: {shell_command('evaluate', self.path)}"
        loaded = read_json_object(self.metrics_file, advice)
        if not is_finite(loaded.get("step")):
            raise UserError(f"{self.metrics_file} is corrupt (it has no step); {advice}")
        return loaded

    def evaluated_step(self) -> int | None:
        """Return the step of the metrics in the folder, or None."""
        metrics = self.metrics()
        return None if metrics is None else int(metrics["step"])

    def has_ended(self) -> bool:
        """Return True if training has nothing left to do: it finished, or the model diverged."""
        events = [event["event"] for event in self.events()]
        return bool(events) and events[-1] in ("finished", "diverged")


def mean_of_last_tenth(records: Sequence[Mapping[str, Any]], column: str) -> float:
    """Return the mean of a column over the last tenth of the steps."""
    return mean_between(records, column, 0.9, 1.0)


def mean_between(
    records: Sequence[Mapping[str, Any]], column: str, start: float, end: float
) -> float:
    """Return the mean of a column between two fractions of a log's steps.

    Each line is weighted by the number of its steps inside the interval.

    Args:
        records: Log records.
        column: Name of the column.
        start: Fraction of the steps where the interval starts.
        end: Fraction of the steps where it ends.
    """
    steps = [0, *(record["step"] for record in records)]
    first, last = start * steps[-1], end * steps[-1]
    overlaps = [min(last, now) - max(first, before) for before, now in pairwise(steps)]
    inside = [
        (weight, record[column])
        for weight, record in zip(overlaps, records, strict=True)
        if weight > 0
    ]
    total = math.fsum(weight for weight, _ in inside)
    return math.fsum(weight * value for weight, value in inside) / total


def find_runs(path: Path) -> list[RunFolder]:
    """Return the run at a path, or all runs below it, `seed-2` before `seed-10`.

    Raises:
        UserError: If there is no run.
    """
    if path.is_dir() and not (path / "experiment.json").is_file():
        inner = sorted(find_run_paths(path), key=_natural_order)
        if inner:
            return [RunFolder(folder) for folder in inner]
    run = RunFolder(path)
    run.manifest()
    return [run]


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that compares the numbers in a path by value."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part) if part.isdigit() else 0, part) for part in parts]


def find_run_paths(path: Path) -> Iterator[Path]:
    """Yield each run folder below a path once, also if it is linked to more than once."""
    seen = set()
    for folder, inner, files in os.walk(path, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # links may form a cycle
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith(PART))  # of `branch`
        if "experiment.json" in files:
            inner[:] = [name for name in inner if name not in _OWN_FOLDERS]
            yield Path(folder)


def look_up(metrics: Mapping[str, Any], path: str) -> float | None:
    """Return a number in nested metrics by its dotted path, or None if it was not measured."""
    value = nested_value(metrics, path)
    return value if isinstance(value, int) else float(value) if is_number(value) else None


def nested_value(metrics: Mapping[str, Any], path: str) -> Any:
    """Return a value in nested metrics by its dotted path, or None if it is missing."""
    value: Any = metrics
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _versions() -> dict[str, str]:
    found = {"controlvae": __version__}
    for package in ("torch", "numpy", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
