"""Job records: what each job trains, its number on the cluster, and what has happened to it.

They are files in `jobs/` below the folder of the runs. Each file has one writer.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlvae.errors import UserError
from controlvae.lab.io import write_json

if TYPE_CHECKING:  # the supervising process of a job needs no torch
    from controlvae.lab.runs.folder import RunFolder

FOLDER = "jobs"
SUBMITIT = "submitit"  # folder of submitit's own files
POOL = "pool"  # folder of the claim of the process that starts local jobs
_FORMAT = 1
_OUTCOMES = ("ended", "failed", "stopped", "requeued", "cancelled")  # events that end a start


@dataclass(frozen=True)
class JobSpec:
    """What a job does.

    Attributes:
        packs: Runs that train side by side, for each GPU of the job. Paths are relative to the
            folder of the runs, so that machines may mount it at different places.
        device: Kind of device, `cpu` or `cuda`.
        checkpoint_every: Seconds between checkpoints.
        retries: How often a failed job starts again.
        seconds: Expected time.
        limit: Seconds after which the job saves and requeues itself, or None.
        data_root: Data folder that is searched first.
        threads: Number of CPU threads, or None to choose it.
        trust_code: The user has named the code of these runs.
        evaluate: Arguments of `controlvae evaluate` after training, or None.
        versions: Packages of the process that submitted the job.
    """

    packs: list[list[str]]
    device: str = "cpu"
    checkpoint_every: float = 30.0
    retries: int = 0
    seconds: float | None = None
    limit: float | None = None
    data_root: str | None = None
    threads: int | None = None
    trust_code: bool = False
    evaluate: list[str] | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRecord:
    """Files of one job.

    Args:
        root: Folder of the runs.
        name: Name of the job, such as `job-001`.
    """

    root: Path
    name: str

    @property
    def spec_file(self) -> Path:
        return self._file(".json")

    @property
    def events_file(self) -> Path:
        """Events, written by the job alone."""
        return self._file(".jsonl")

    @property
    def output_file(self) -> Path:
        """Output of the training processes."""
        return self._file(".log")

    @property
    def submission_file(self) -> Path:
        """Number of the job on its cluster, written by the process that submits it."""
        return self._file(".submitted.json")

    @property
    def cancel_file(self) -> Path:
        """Its existence stops the job and keeps it from starting."""
        return self._file(".cancelled")

    def _file(self, suffix: str) -> Path:
        return self.root / FOLDER / f"{self.name}{suffix}"

    def spec(self) -> JobSpec:
        """Return what the job does.

        Raises:
            UserError: If the file is missing or unreadable.
        """
        try:
            content = json.loads(self.spec_file.read_text(encoding="utf-8"))
            if content.pop("format") > _FORMAT:
                raise UserError(f"{self.spec_file} was written by a later controlvae")
            return JobSpec(**content)
        except FileNotFoundError:
            raise UserError(
                f"no job at {self.spec_file}; is the folder shared among the machines?"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{self.spec_file} is corrupt: {error}") from None

    def paths(self) -> list[Path]:
        """Return the run folders of the job."""
        return [self.root / run for pack in self.spec().packs for run in pack]

    def folders(self) -> "list[RunFolder]":
        """Return the runs of the job."""
        from controlvae.lab.runs.folder import RunFolder

        return [RunFolder(path) for path in self.paths()]

    def log(self, event: str, **details: Any) -> None:
        """Append an event with the current time. Only the job itself does this."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self.events_file.open("a") as file:
            file.write(json.dumps({"time": now, "event": event, **details}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the job."""
        events = []
        with contextlib.suppress(FileNotFoundError):
            for line in self.events_file.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # torn by a crash
                    events.append(json.loads(line))
        return events

    def outcome(self) -> dict[str, Any] | None:
        """Return the event that ended the last start, or None if the job runs or never started."""
        last = next(iter(self.events()[-1:]), None)
        return last if last is not None and last["event"] in _OUTCOMES else None

    def submission(self) -> dict[str, Any]:
        """Return cluster and number of the job, or nothing if it has not been submitted."""
        with contextlib.suppress(OSError, ValueError):
            content: dict[str, Any] = json.loads(self.submission_file.read_text(encoding="utf-8"))
            return content
        return {}

    def note_submission(self, cluster: str, number: str) -> None:
        """Record the number of the job on its cluster."""
        write_json(self.submission_file, {"cluster": cluster, "job": number})

    def is_cancelled(self) -> bool:
        """Return True if the job must not train."""
        return self.cancel_file.exists()

    def withdraw(self) -> None:
        """Delete the record of a job that was never submitted."""
        for file in (self.spec_file, self.submission_file, self.cancel_file):
            file.unlink(missing_ok=True)


def create_records(root: Path, specs: Sequence[JobSpec]) -> list[JobRecord]:
    """Write the records of new jobs under names that no other process takes.

    Args:
        root: Folder of the runs.
        specs: What the jobs do.
    """
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("job-*.json")))
    records = []
    for spec in specs:
        while True:
            number += 1
            record = JobRecord(root, f"job-{number:03d}")
            with contextlib.suppress(FileExistsError):
                with record.spec_file.open("x") as file:
                    file.write(json.dumps({"format": _FORMAT, **asdict(spec)}, indent=2) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                break
        records.append(record)
    return records


def remove_empty_folder(root: Path) -> None:
    """Delete `jobs/` if it has no records."""
    folder = root / FOLDER
    with contextlib.suppress(OSError):
        if not any(folder.glob("job-*.json")):
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()


def find_records(path: Path) -> list[JobRecord]:
    """Return the records of the jobs in or below a folder of runs, oldest first."""
    return [
        JobRecord(folder.parent, file.stem)
        for folder in _record_folders(path)
        for file in sorted(folder.glob("job-*.json"))
        if "." not in file.stem
    ]


def _record_folders(path: Path) -> Iterator[Path]:
    for folder, inner, _ in os.walk(path):
        inner.sort()
        if FOLDER in inner:
            inner.remove(FOLDER)
            yield Path(folder) / FOLDER


def last_lines(path: Path, count: int = 3, start: int = 0) -> list[str]:
    """Return the last lines of a text file that are not empty.

    Args:
        path: Text file.
        count: Number of lines.
        start: Position from which the file is read.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()][-count:]
