"""What the kinds of clusters have in common."""

import math
import re
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.job import TrainingJob
from controlvae.lab.cluster.records import FOLDER, SUBMITIT, JobRecord
from controlvae.lab.training.durations import parse_duration

INSTALL = "pip install 'controlvae[cluster]'"
MAX_REQUEUES = 10_000  # time limits are normal; a job that makes no progress gives up by itself
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d\d)")  # such as 1-00:00:00 or 5:00


@dataclass(frozen=True)
class Slots:
    """Jobs that can run at the same time.

    Attributes:
        count: Number of jobs, or None if it is not known.
        words: What limits it.
    """

    count: int | None
    words: str


@dataclass(frozen=True)
class Cluster(ABC):
    """Where and how jobs run.

    Attributes:
        time: Time limit of a job, such as `90m`, `4h` or `1-00:00:00`. A job that needs more is
            requeued and resumes.
        gpus: GPUs of a job. The default is 1 if there are GPUs, else 0.
        cpus: CPU cores of a job.
        array_limit: Number of jobs that may run at the same time.
        per_job: Number of runs side by side. The default is chosen from memory and speed.
        retries: How often a failed job starts again.
        wait: Wait until all jobs have ended.
    """

    time: str | float | None = None
    gpus: int | None = None
    cpus: int | None = None
    array_limit: int | None = None
    per_job: int | None = None
    retries: int = 2
    wait: bool = True

    name = "cluster"  # on the command line

    def __post_init__(self) -> None:
        for option, least in (("gpus", 0), ("cpus", 1), ("array_limit", 1), ("per_job", 1)):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, int) or value < least):
                name = f"--{option.replace('_', '-')}"
                raise UserError(f"{name} must be a number of at least {least}, got {value!r}")
        if self.retries < 0:
            raise UserError(f"--retries must be at least 0, got {self.retries}")
        _ = self.minutes

    @property
    def minutes(self) -> int | None:
        """Time limit in whole minutes, or None."""
        if self.time is None:
            return None
        total = parse_slurm_time(str(self.time))
        if total is None:
            total = parse_duration("--time", self.time, lambda line: None)
        if total < 60:
            raise UserError(f"--time must be at least 1m, got {self.time!r}")
        return math.ceil(total / 60)

    @property
    def signal_seconds(self) -> int:
        """Seconds between the signal to save and the time limit."""
        return min(90, 30 * (self.minutes or 60))

    @abstractmethod
    def require_ready(self, folder: Path, note: Callable[[str], None]) -> None:
        """Raise UserError if jobs cannot run here, before anything is written.

        Args:
            folder: Folder of the runs, which need not exist yet.
            note: Receives messages for the user.
        """

    @abstractmethod
    def job_gpus(self, device: str) -> int:
        """Return the number of GPUs of a job.

        Args:
            device: `auto`, `cpu` or `cuda`.
        """

    @abstractmethod
    def slots(self, gpus: int) -> Slots:
        """Return how many jobs with this many GPUs can run at the same time."""

    @abstractmethod
    def submit(self, root: Path, records: Sequence[JobRecord], gpus: int) -> None:
        """Hand jobs to the cluster.

        Args:
            root: Folder of the runs.
            records: Jobs.
            gpus: GPUs of each job.
        """

    @abstractmethod
    def wait_for(self, records: Sequence[JobRecord], say: Callable[[str], None]) -> None:
        """Return when all jobs have ended.

        Args:
            records: Jobs.
            say: Receives a line when something has changed.
        """


def parse_slurm_time(text: str) -> float | None:
    """Return the seconds of a time as Slurm writes it, or None if the text is something else."""
    match = _SLURM_TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def import_submitit() -> Any:
    """Return the package submitit, or raise UserError with the command that installs it."""
    try:
        import submitit
    except ModuleNotFoundError:
        raise UserError(f"--cluster needs submitit: {INSTALL}") from None
    return submitit


def submitit_folder(root: Path) -> Path:
    """Return the folder of submitit's own files."""
    return root / FOLDER / SUBMITIT


def launch_command() -> str:
    """Return the shell command that starts Python in a job.

    Until the job handles it, SIGUSR2 would kill the process. It is ignored for the milliseconds
    until it can be blocked, and delivered when the job unblocks it.
    """
    ignore = 'trap "" USR2; exec "$0" "$@"'
    block = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    python = sys.executable
    return shlex.join(["/bin/sh", "-c", ignore, python, "-I", "-S", "-c", block, python])


def make_job(record: JobRecord) -> TrainingJob:
    """Return the callable of a job, which remembers failures of earlier starts."""
    failures = max((event.get("failures", 0) for event in record.events()), default=0)
    return TrainingJob(str(record.root.absolute()), record.name, failures)
