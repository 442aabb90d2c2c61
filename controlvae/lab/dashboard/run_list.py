"""List of the runs below a folder, with the state of each."""

import importlib
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.status import JobState, jobs_by_run
from controlvae.lab.config import Experiment
from controlvae.lab.dashboard.run_summary import RunSummary, summarise_run
from controlvae.lab.runs.claim_files import ClaimRecord, read_claim
from controlvae.lab.runs.folder import RunFolder, find_run_paths
from controlvae.lab.runs.logger import in_training

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


def find_runs_below(root: Path) -> dict[str, RunFolder]:
    """Find the runs below a folder, linked ones included, by relative path and newest first.

    Runs may appear and disappear during the search.
    """
    runs = []
    for path in find_run_paths(root):
        run = RunFolder(path)
        if (stamp := _stamp(run.experiment_file)) is not None:
            runs.append((stamp, run))
    runs.sort(key=lambda pair: pair[0], reverse=True)
    return {run.path.relative_to(root).as_posix(): run for _, run in runs}


@dataclass
class _Entry:
    """A run in the list, and the files that its summary was made of."""

    folder: RunFolder
    stamp: Any
    summary: dict[str, Any]
    version: int
    training: bool
    has_warnings: bool = False  # the warnings are those of the present files
    experiment: tuple[Any, Experiment] | None = None  # with the stamp of its file
    reached: float | None = None  # step of the last move whose target was reached


@dataclass
class RunList:
    """Summaries of the runs below a folder. A run with unchanged files is not read again.

    The list has a version, which grows when it changes, so that a page can ask for the changes
    since the version it has. Others may read the list while it is refreshed: a new version is set
    once all of its changes are there. Warnings need the whole log, so they are added after the rest.
    """

    root: Path
    version: int = 0
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _removed: list[tuple[int, str]] = field(default_factory=list)
    _jobs: dict[Path, JobState] = field(default_factory=dict)
    _jobs_read: float = -math.inf

    def refresh(self) -> list[dict[str, Any]]:
        """Read what has changed, and return the summary of every run."""
        runs = find_runs_below(self.root)
        now = time.monotonic()
        if now - self._jobs_read > _SECONDS_BETWEEN_QUEUES:  # Slurm is not asked at every refresh
            self._jobs, self._jobs_read = jobs_by_run(self.root), now
        removed = self._entries.keys() - runs.keys()
        self._entries = {name: self._update(name, folder) for name, folder in runs.items()}
        self._removed += [(self.version + 1, name) for name in sorted(removed)]
        self._publish(is_changed=bool(removed))
        return self.summaries()

    def refresh_some(self, names: Collection[str]) -> None:
        """Read what has changed in these runs alone."""
        for name in names:
            if (entry := self._entries.get(name)) is not None:
                self._update(name, entry.folder)
        self._publish()

    def add_warnings(self, budget: float = math.inf, first: Collection[str] = ()) -> None:
        """Add the warnings that are missing to the summaries.

        Args:
            budget: Seconds after which the rest waits for the next call.
            first: Names of the runs that come first.
        """
        began = time.monotonic()
        due = [name for name, entry in self._entries.items() if not entry.has_warnings]
        for name in sorted(due, key=lambda name: name not in first):
            self._add_warnings(name)
            if time.monotonic() - began > budget:
                break
        self._publish()

    def folder(self, name: str) -> RunFolder | None:
        """Return the folder of a listed run, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry.folder

    def summaries(self) -> list[dict[str, Any]]:
        """Return a summary of every run. For a run that cannot be read it holds the error."""
        return [entry.summary for entry in self._entries.values()]

    def changes_since(self, version: int) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the summaries that changed after a version, and the names of removed runs."""
        changed = [entry.summary for entry in self._entries.values() if entry.version > version]
        removed = {name for then, name in self._removed if then > version}
        return changed, sorted(removed - self._entries.keys())

    def _publish(self, is_changed: bool = False) -> None:
        """Set the next version if anything has changed."""
        if is_changed or any(entry.version > self.version for entry in self._entries.values()):
            self.version += 1

    def _update(self, name: str, folder: RunFolder) -> _Entry:
        training = in_training(folder)
        job = None
        if self._jobs and not training:
            job = self._jobs.get(folder.path.resolve())
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
        entry = self._entries.get(name)
        if entry is not None and entry.stamp == stamp:
            return entry
        if entry is None:
            entry = _Entry(folder, stamp, {}, 0, training)
        entry.stamp, entry.training, entry.has_warnings = stamp, training, False
        before = entry.summary
        entry.summary = self._read(name, entry, claim, state)
        if entry.summary.get("warnings") == [] and "warnings" in before:
            entry.summary["warnings"] = before["warnings"]  # until they are read again
        self._mark_changed(entry, before)
        return entry

    def _read(
        self, name: str, entry: _Entry, claim: ClaimRecord | None, job: str | None
    ) -> dict[str, Any]:
        try:
            experiment = _experiment(entry)
            summary = summarise_run(name, entry.folder, entry.training, experiment, entry.reached)
            steering = summary.steering
            if steering is not None and steering.applied and steering.outcome == "reached":
                entry.reached = steering.applied["step"]
            return asdict(_with_progress(_with_job(summary, entry.folder, job), claim))
        except UserError as error:
            return {"run": name, "error": str(error)}
        # One corrupt folder must not hide the others, whatever is wrong with it.
        except Exception as error:
            return {"run": name, "error": f"cannot read {entry.folder.path}: {error!r}"}

    def _add_warnings(self, name: str) -> None:
        entry = self._entries[name]
        entry.has_warnings = True
        if "error" in entry.summary:
            return
        before = entry.summary
        try:
            entry.summary = before | {"warnings": _warnings(entry.folder, entry.training)}
        except Exception as error:
            text = f"cannot read {entry.folder.path}: {error!r}"
            entry.summary = {"run": name, "error": text}
        self._mark_changed(entry, before)

    def _mark_changed(self, entry: _Entry, before: Mapping[str, Any]) -> None:
        if entry.summary != before:
            entry.version = self.version + 1


def _experiment(entry: _Entry) -> Experiment:
    """Return the experiment of a run, read again only if its file has changed."""
    stamp = _stamp(entry.folder.experiment_file)
    if entry.experiment is None or entry.experiment[0] != stamp:
        entry.experiment = stamp, entry.folder.experiment()
    return entry.experiment[1]


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


def _warnings(folder: RunFolder, is_training: bool) -> list[str]:
    """Return the warnings about a run; a corrupt metrics file is one and does not hide curves.

    Reports are imported here, because they need the plots, for which the list does not wait.
    """
    warnings = importlib.import_module("controlvae.lab.reports.warnings")
    try:
        lines: list[str] = warnings.run_warnings(folder, is_training=is_training)
        return lines
    except UserError as error:
        return [str(error)]


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return modification time and size of a file, or None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
