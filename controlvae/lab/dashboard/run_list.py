"""List of the runs below a folder, with the state of each."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.status import JobState, jobs_by_run
from controlvae.lab.config import DialogVAEConfig, Experiment, TextVAEConfig
from controlvae.lab.dashboard.log_tail import is_finite_number
from controlvae.lab.io import PART
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.claim_files import ClaimRecord, read_claim
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training
from controlvae.lab.runs.requests import pending_request
from controlvae.laws.base import Feedback, Law

_MAX_LISTED_NUMBERS = 6  # of a long tuple, such as a recorded β
_SECONDS_BETWEEN_QUEUES = 10.0
# State of a run that is not training, by that of its job.
_JOB_STATES = {
    "queued": "queued",
    "held": "queued",
    "running": "starting",
    "failed": "failed",
    "lost": "failed",
    "cancelled": "cancelled",
}
# State of a run that is not training, by the last of these events. A process that was killed has
# logged no end.
_STATES = {
    "finished": "finished",
    "stopped": "stopped",
    "diverged": "diverged",
    "branched": "stopped",
    "started": "interrupted",
    "resumed": "interrupted",
}


@dataclass(frozen=True)
class RunSummary:
    """A run in the list."""

    run: str  # path below the folder of the page
    preset: str
    law: str
    state: str  # training, finished, stopped, diverged, interrupted, not started or a job's
    step: int
    steps: int
    controlled: str  # log column that the target refers to
    target: float | None
    latest: dict[str, float]  # numbers in the last record of the log
    shows: str  # images, sentences or dialogs
    checkpoint: int | None
    steerable: bool  # its target may be moved
    request: str | None  # a target request that has not been applied yet
    warnings: list[str]
    speed: float | None = None  # steps per second while it trains
    seconds_left: float | None = None


def find_runs_below(root: Path) -> dict[str, RunFolder]:
    """Find the runs below a folder, by their relative paths, newest first.

    Runs may appear and disappear during the search.
    """
    runs = []
    for path, inner, _ in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(PART)]  # unfinished
        run = RunFolder(Path(path))
        if (stamp := _stamp(run.experiment_file)) is not None:
            runs.append((stamp, run))
    runs.sort(key=lambda pair: pair[0], reverse=True)
    return {run.path.relative_to(root).as_posix(): run for _, run in runs}


@dataclass
class RunList:
    """Summaries of the runs below a folder. A run with unchanged files is not read again."""

    root: Path
    _known: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    _jobs: dict[Path, JobState] = field(default_factory=dict)
    _jobs_read: float = -math.inf

    def refresh(self) -> list[dict[str, Any]]:
        """Return a summary of every run. For a run that cannot be read it holds the error."""
        runs = find_runs_below(self.root)
        now = time.monotonic()
        if now - self._jobs_read > _SECONDS_BETWEEN_QUEUES:  # Slurm is not asked at every refresh
            self._jobs, self._jobs_read = jobs_by_run(self.root), now
        self._known = {name: self._summarise(name, folder) for name, folder in runs.items()}
        return [summary for _, summary in self._known.values()]

    def _summarise(self, name: str, folder: RunFolder) -> tuple[Any, dict[str, Any]]:
        training = in_training(folder)
        job = None if training else self._jobs.get(folder.path.resolve())
        claim = read_claim(folder.claims) if training else None
        files = (
            folder.experiment_file,
            folder.log_file,
            folder.events_file,
            folder.checkpoints,
            folder.request_file,
            folder.old_request_file,
            folder.metrics_file,
        )
        state = None if job is None else job.state
        stamp = (training, claim, state, *(_stamp(file) for file in files))
        before = self._known.get(name)
        if before is not None and before[0] == stamp:
            return before
        try:
            summary = summarise_run(name, folder, training)
            return stamp, asdict(_with_progress(_with_job(summary, folder, state), claim))
        except UserError as error:
            return stamp, {"run": name, "error": str(error)}
        # One corrupt folder must not hide the others, whatever is wrong with it.
        except Exception as error:
            return stamp, {"run": name, "error": f"cannot read {folder.path}: {error!r}"}


def _with_job(summary: RunSummary, folder: RunFolder, job: str | None) -> RunSummary:
    """Return the summary with the state of the run's job, if it waits in a queue or has failed."""
    if job not in _JOB_STATES or folder.has_ended():
        return summary
    return replace(summary, state=_JOB_STATES[job])


def _with_progress(summary: RunSummary, claim: ClaimRecord | None) -> RunSummary:
    """Return the summary with speed and time left, as the process that trains the run says."""
    if claim is None or not claim.speed:
        return summary
    left = max(0, summary.steps - max(claim.step, summary.step)) / claim.speed
    return replace(summary, speed=claim.speed, seconds_left=left)


def summarise_run(name: str, folder: RunFolder, is_training: bool) -> RunSummary:
    """Summarise a run.

    Args:
        name: Path of the run below the folder of the page.
        folder: The run folder.
        is_training: True if a process trains the run.
    """
    experiment, last = folder.experiment(), folder.last_record() or {}
    latest = {column: value for column, value in last.items() if is_finite_number(value)}
    return RunSummary(
        run=name,
        preset=experiment.name,
        law=_format_law(experiment.control),
        state="training" if is_training else _final_state(folder),
        step=int(latest.get("step", 0)),
        steps=experiment.training.steps,
        controlled=experiment.controlled_quantity,
        target=_current_target(experiment, latest),
        latest=latest,
        shows=_shown_kind(experiment),
        checkpoint=latest_step(folder.checkpoints),
        steerable=isinstance(experiment.control, Feedback) and not folder.has_ended(),
        request=pending_request(folder),
        warnings=_warnings(folder, is_training),
    )


def _warnings(folder: RunFolder, is_training: bool) -> list[str]:
    """Return the warnings about a run; a corrupt metrics file is one and does not hide curves."""
    try:
        return run_warnings(folder, is_training=is_training)
    except UserError as error:
        return [str(error)]


def _current_target(experiment: Experiment, last: Mapping[str, Any]) -> float | None:
    """Return the target in the last record, or that of the law before the first record."""
    law = experiment.control
    initial = float(law.initial_state().target) if isinstance(law, Feedback) else None
    return last.get("target", initial)


def _final_state(folder: RunFolder) -> str:
    """Return the state of a run that is not training."""
    events = (event["event"] for event in reversed(folder.events()))
    last = next((event for event in events if event in _STATES), None)
    return "not started" if last is None else _STATES[last]


def _format_law(law: Law) -> str:
    """Format a law as a constructor call with its non-default fields."""
    arguments = [
        f"{f.name}={_format_value(value)}"
        for f in fields(law)  # type: ignore[arg-type]
        if (value := getattr(law, f.name)) != f.default
    ]
    return f"{type(law).__name__}({', '.join(arguments)})"


def _format_value(value: object) -> str:
    """Format a value on one line; a long tuple by its ends."""
    if isinstance(value, tuple) and len(value) > _MAX_LISTED_NUMBERS:
        return f"({value[0]:g}, ... {len(value)} numbers ..., {value[-1]:g})"
    return repr(value)


def _shown_kind(experiment: Experiment) -> str:
    match experiment.model:
        case TextVAEConfig():
            return "sentences"
        case DialogVAEConfig():
            return "dialogs"
    return "images"


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return modification time and size of a file, or None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
