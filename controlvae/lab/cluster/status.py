"""State of jobs and of runs: queued, running, finished, failed, speed and time left."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from controlvae.errors import UserError
from controlvae.lab.cluster.plan import format_time
from controlvae.lab.cluster.records import FOLDER, POOL, JobRecord, find_records
from controlvae.lab.cluster.slurm_commands import cancel_jobs, job_output, read_queue
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.claim_files import (
    ClaimRecord,
    read_claim,
    server_time,
    shows_life,
    this_machine,
)
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.logger import in_training

_ACTIVE = ("queued", "running", "held", "ending", "suspended")
_PARENTS = 3  # folders above a run in which its job may be
# State of a run without a job, by its last event.
_RUN_STATES = {
    "finished": "finished",
    "diverged": "diverged",
    "stopped": "stopped",
    "branched": "stopped",
    "started": "interrupted",
    "resumed": "interrupted",
}


@dataclass(frozen=True)
class JobState:
    """State of a job.

    Attributes:
        record: The job.
        state: queued, running, held, ending, suspended, ended, failed, cancelled, stopped or lost.
        lines: Last lines of a job that failed.
    """

    record: JobRecord
    state: str
    lines: tuple[str, ...] = ()

    @property
    def is_active(self) -> bool:
        """True if the job runs or will run."""
        return self.state in _ACTIVE

    @cached_property
    def paths(self) -> set[Path]:
        """Folders of the job's runs, without links."""
        return {path.resolve() for path in self.record.paths()}


@dataclass(frozen=True)
class RunState:
    """State of a run.

    Attributes:
        folder: The run.
        state: queued, running, finished, failed, diverged, cancelled, stopped, interrupted or not
            started.
        step: Newest step.
        steps: Last step.
        speed: Steps per second while it runs.
        place: Machine that trains the run, or number of its job.
        lines: Last lines of a job that failed.
    """

    folder: RunFolder
    state: str
    step: int
    steps: int
    speed: float | None = None
    place: str = ""
    lines: tuple[str, ...] = ()

    @property
    def seconds_left(self) -> float | None:
        """Expected time to the last step, or None if the run is not training."""
        return (self.steps - self.step) / self.speed if self.speed else None


def job_states(records: Sequence[JobRecord]) -> list[JobState]:
    """Return the states of jobs. Slurm is asked once."""
    submissions = {record.name: record.submission() for record in records}
    asks_slurm = any(one.get("cluster") == "slurm" for one in submissions.values())
    queue = read_queue() if asks_slurm else None
    return [_job_state(record, submissions[record.name], queue) for record in records]


def run_states(path: Path) -> list[RunState]:
    """Return the states of the run at a path, or of all runs below it.

    Raises:
        UserError: If there is no run.
    """
    folders, jobs = find_runs(path), jobs_by_run(path)
    now = server_time(path)
    return [_run_state(folder, jobs.get(folder.path.resolve()), now) for folder in folders]


def jobs_by_run(path: Path) -> dict[Path, JobState]:
    """Return the newest job of each run at or below a path, by the folder of the run."""
    jobs: dict[Path, JobState] = {}
    for state in job_states([*_records_above(path), *find_records(path)]):
        jobs.update(dict.fromkeys(state.paths, state))
    return jobs


def describe_states(path: Path) -> tuple[list[str], list[list[str]], list[str]]:
    """Return headings, a row for each run, and a summary with the last lines of failed jobs.

    Args:
        path: Run folder, or folder of runs.
    """
    states = run_states(path)
    rows = [_describe_run(state, path) for state in states]
    counts = {state.state: 0 for state in states}
    for state in states:
        counts[state.state] += 1
    summary = [", ".join(f"{count} {state}" for state, count in counts.items())]
    left = [state.seconds_left for state in states if state.seconds_left is not None]
    if left:
        summary[0] += f"; the runs in training need {format_time(max(left))} more"
    for lines in dict.fromkeys(state.lines for state in states if state.lines):
        names = [str(state.folder.path) for state in states if state.lines == lines]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        summary.append(f"{names[0]}{more}: {'; '.join(lines)}")
    return ["run", "state", "step", "steps/s", "left", "where"], rows, summary


def cancel(path: Path) -> list[str]:
    """Cancel the jobs of the runs at or below a path. Training saves, so runs can be resumed.

    Args:
        path: Run folder, or folder of runs.

    Returns:
        Human-readable lines.

    Raises:
        UserError: If no job is queued or running.
    """
    wanted = {folder.path.resolve() for folder in find_runs(path)}
    records = [*_records_above(path), *find_records(path)]
    active = [state for state in job_states(records) if state.is_active and state.paths & wanted]
    if not active:
        raise UserError(f"no job of {path} is queued or running")
    lines = []
    for state in active:
        others = len(state.paths - wanted)
        more = f", with {others} other runs that train side by side" if others else ""
        lines.append(f"cancelled {state.record.name}{more}")
        state.record.cancel_file.touch()
    numbers = [
        state.record.submission()["job"]
        for state in active
        if state.record.submission().get("cluster") == "slurm"
    ]
    cancel_jobs(numbers)
    return lines


def pool_is_alive(root: Path) -> bool:
    """Return True if a process starts the local jobs of a folder."""
    folder = root / FOLDER / POOL
    claim = read_claim(folder)
    return claim is not None and _is_alive(claim, folder, server_time(root))


def _is_alive(claim: ClaimRecord, folder: Path, now: float) -> bool:
    if claim.held and claim.machine == this_machine():
        return _process_exists(claim.process)
    return shows_life(claim, folder, now)


def _process_exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _job_state(
    record: JobRecord, submission: dict[str, str], queue: dict[str, str] | None
) -> JobState:
    events = record.events()
    last = events[-1] if events else {"event": ""}
    if queue is not None and submission.get("cluster") == "slurm":
        if (state := queue.get(str(submission["job"]))) is not None:
            return JobState(record, state)
    elif last["event"] not in ("ended", "failed", "cancelled"):
        training = any(in_training(folder) for folder in record.folders())
        if training or pool_is_alive(record.root):
            return JobState(record, "running" if training else "queued")
    if last["event"] in ("ended", "stopped", "cancelled"):
        return JobState(record, last["event"])
    if last["event"] == "failed":
        return JobState(record, "failed", tuple(last["lines"]))
    if record.is_cancelled():
        return JobState(record, "cancelled")
    return JobState(record, "lost", tuple(job_output(record)))


def _run_state(folder: RunFolder, job: JobState | None, now: float) -> RunState:
    experiment, last = folder.experiment(), folder.last_record() or {}
    claim = read_claim(folder.claims)
    step = int(last.get("step", latest_step(folder.checkpoints) or 0))
    steps = experiment.training.steps
    number = "" if job is None else str(job.record.submission().get("job") or job.record.name)
    if folder.has_ended():
        return RunState(folder, _last_state(folder), step, steps)
    if claim is not None and _trains(folder, claim, now):
        return RunState(
            folder, "running", max(step, claim.step), steps, claim.speed or None, claim.host
        )
    if job is not None and job.is_active:
        state = "starting" if job.state == "running" else job.state
        return RunState(folder, state, step, steps, place=f"job {number}")
    if job is not None and job.state in ("failed", "cancelled", "lost"):
        state = "failed" if job.state == "lost" else job.state
        return RunState(folder, state, step, steps, place=f"job {number}", lines=job.lines)
    return RunState(folder, _last_state(folder), step, steps)


def _trains(folder: RunFolder, claim: ClaimRecord, now: float) -> bool:
    if claim.machine == this_machine():
        return in_training(folder)
    return shows_life(claim, folder.claims, now)


def _last_state(folder: RunFolder) -> str:
    events = (event["event"] for event in reversed(folder.events()))
    last = next((event for event in events if event in _RUN_STATES), None)
    return "not started" if last is None else _RUN_STATES[last]


def _describe_run(state: RunState, path: Path) -> list[str]:
    left = "" if state.seconds_left is None else format_time(state.seconds_left)
    name = "." if state.folder.path == path else str(state.folder.path.relative_to(path))
    speed = "" if state.speed is None else f"{state.speed:,.3g}"
    return [name, state.state, f"{state.step:,} of {state.steps:,}", speed, left, state.place]


def _records_above(path: Path) -> Iterator[JobRecord]:
    """Yield the jobs in the folders above a path, which may train the runs below it."""
    for parent in list(path.absolute().parents)[:_PARENTS]:
        for file in sorted((parent / FOLDER).glob("job-*.json")):
            if "." not in file.stem:
                yield JobRecord(parent, file.stem)
