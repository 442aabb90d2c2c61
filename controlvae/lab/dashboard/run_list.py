"""List of the runs below a folder, with the state of each."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.status import JobState, jobs_by_run
from controlvae.lab.config import DialogVAEConfig, Experiment, TextVAEConfig
from controlvae.lab.dashboard.log_tail import is_finite_number
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.claim_files import ClaimRecord, read_claim
from controlvae.lab.runs.folder import RunFolder, find_run_paths
from controlvae.lab.runs.logger import in_training
from controlvae.lab.runs.requests import pending_request
from controlvae.lab.runs.steering import Reach, Steering, describe_steering, known_reach
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
    target: float | None  # in force now
    latest: dict[str, float]  # numbers in the last record of the log
    shows: str  # images, sentences or dialogs
    checkpoint: int | None
    steerable: bool  # its target may be moved
    request: str | None  # a target request that has not been applied yet
    steering: Steering | None  # what became of requests
    reach: Reach  # limits of the controlled quantity, as far as they are known
    created: float  # seconds since 1970
    warnings: list[str] = field(default_factory=list)
    speed: float | None = None  # steps per second while it trains
    seconds_left: float | None = None


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

    The list has a version, which grows with every change, so that a page can ask for the changes
    since the version it has. Warnings need the whole log, so they are filled in after the rest.
    """

    root: Path
    version: int = 0
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _removed: list[tuple[int, str]] = field(default_factory=list)
    _jobs: dict[Path, JobState] = field(default_factory=dict)
    _jobs_read: float = -math.inf

    def refresh(
        self, budget: float = math.inf, first: Collection[str] = ()
    ) -> list[dict[str, Any]]:
        """Read what has changed, and return the summary of every run.

        Args:
            budget: Seconds for warnings. Those that do not fit wait for the next call.
            first: Names of the runs whose warnings come first.
        """
        runs = find_runs_below(self.root)
        now = time.monotonic()
        if now - self._jobs_read > _SECONDS_BETWEEN_QUEUES:  # Slurm is not asked at every refresh
            self._jobs, self._jobs_read = jobs_by_run(self.root), now
        self._remove(self._entries.keys() - runs.keys())
        entries = {name: self._update(name, folder) for name, folder in runs.items()}
        self._entries = entries
        due = [name for name in entries if not entries[name].has_warnings]
        for name in sorted(due, key=lambda name: name not in first):
            if time.monotonic() - now > budget:
                break
            self._add_warnings(name)
        return self.summaries()

    def refresh_some(self, names: Collection[str]) -> None:
        """Read what has changed in these runs alone."""
        for name in names:
            if (entry := self._entries.get(name)) is not None:
                self._update(name, entry.folder)

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

    def _remove(self, names: Collection[str]) -> None:
        if names:
            self.version += 1
            self._removed += [(self.version, name) for name in sorted(names)]

    def _update(self, name: str, folder: RunFolder) -> _Entry:
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
            summary = summarise_run(name, entry.folder, entry.training, _experiment(entry), entry)
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
            self.version += 1
            entry.version = self.version


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


def summarise_run(
    name: str, folder: RunFolder, is_training: bool, experiment: Experiment, entry: _Entry
) -> RunSummary:
    """Summarise a run, without its warnings.

    Args:
        name: Path of the run below the folder of the page.
        folder: The run folder.
        is_training: True if a process trains the run.
        experiment: The experiment of the run.
        entry: Entry in the list, which remembers that a target was reached.
    """
    last, events, request = folder.last_record() or {}, folder.events(), pending_request(folder)
    latest = {column: value for column, value in last.items() if is_finite_number(value)}
    controlled = experiment.controlled_quantity
    steering = _follow_target(entry, events, request, controlled, latest)
    created = _stamp(folder.experiment_file)
    has_ended = bool(events) and events[-1]["event"] in ("finished", "diverged")
    law = experiment.control
    return RunSummary(
        run=name,
        preset=experiment.name,
        law=_format_law(law, steering),
        state="training" if is_training else _final_state(events),
        step=int(latest.get("step", 0)),
        steps=experiment.training.steps,
        controlled=controlled,
        target=_current_target(experiment, latest, steering),
        latest=latest,
        shows=_shown_kind(experiment),
        checkpoint=latest_step(folder.checkpoints),
        steerable=isinstance(law, Feedback) and experiment.rates is None and not has_ended,
        request=request,
        steering=steering,
        reach=known_reach(events, controlled, latest),
        created=0.0 if created is None else created[0] / 1e9,
    )


def _follow_target(
    entry: _Entry,
    events: Sequence[Mapping[str, Any]],
    request: str | None,
    controlled: str,
    latest: Mapping[str, Any],
) -> Steering | None:
    """Return what became of requests. A target that was reached once counts as reached."""
    moves = [event["step"] for event in events if event["event"] == "target moved"]
    was_reached = bool(moves) and entry.reached == moves[-1]
    steering = describe_steering(events, request, controlled, latest, was_reached)
    if steering is not None and steering.outcome == "reached":
        entry.reached = moves[-1]
    return steering


def _warnings(folder: RunFolder, is_training: bool) -> list[str]:
    """Return the warnings about a run; a corrupt metrics file is one and does not hide curves."""
    try:
        return run_warnings(folder, is_training=is_training)
    except UserError as error:
        return [str(error)]


def _current_target(
    experiment: Experiment, last: Mapping[str, Any], steering: Steering | None
) -> float | None:
    """Return the target in force: the last record's, or a later one set by hand.

    Before the first record it is that of the law.
    """
    law, applied = experiment.control, None if steering is None else steering.applied
    if applied is not None and applied["step"] >= last.get("step", 0):
        return applied["target"]
    initial = float(law.initial_state().target) if isinstance(law, Feedback) else None
    return last.get("target", initial)


def _final_state(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the state of a run that is not training."""
    names = (event["event"] for event in reversed(events))
    last = next((name for name in names if name in _STATES), None)
    return "not started" if last is None else _STATES[last]


def _format_law(law: Law, steering: Steering | None) -> str:
    """Format a law as a constructor call with its non-default fields and the target in force."""
    applied = None if steering is None else steering.applied
    moved = {} if applied is None else {"target": applied["target"]}
    arguments = [
        f"{f.name}={_format_value(value)}"
        for f in fields(law)  # type: ignore[arg-type]
        if (value := moved.get(f.name, getattr(law, f.name))) != f.default
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
