"""Training of planned runs: in this process, or as jobs of a cluster."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import RunError, UserError, shell_command
from controlvae.lab.cluster.base import Cluster
from controlvae.lab.cluster.device_speed import speed_finder
from controlvae.lab.cluster.local import Local
from controlvae.lab.cluster.plan import JobPlan, PlannedRun, make_plan
from controlvae.lab.cluster.preflight import installed_versions
from controlvae.lab.cluster.records import (
    FOLDER,
    JobRecord,
    JobSpec,
    create_records,
    find_records,
    remove_empty_folder,
)
from controlvae.lab.cluster.slurm_commands import job_output
from controlvae.lab.cluster.status import JobState, job_states
from controlvae.lab.runs.claim import Claim, RunInUseError
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.run_setup import Plan
from controlvae.lab.training.run_threads import recorded_threads
from controlvae.lab.training.runner import RunOptions, resume_step
from controlvae.lab.training.scheduler import train_all


@dataclass(frozen=True)
class JobOptions:
    """How runs become jobs.

    Attributes:
        cluster: Where they run.
        device: `auto`, `cpu` or `cuda`.
        dry_run: Show the plan, and do nothing.
        evaluate: Arguments of `controlvae evaluate` after training, or None.
    """

    cluster: Cluster
    device: str = "auto"
    dry_run: bool = False
    evaluate: tuple[str, ...] | None = None


def make_job_options(
    cluster: Cluster | None, device: str, dry_run: bool = False
) -> tuple[JobOptions | None, str]:
    """Return how runs become jobs, and the device of the process that submits them.

    Args:
        cluster: Where jobs run, or None to train in this process.
        device: Device that the user asks for.
        dry_run: Show the plan, and do nothing.
    """
    if cluster is None and not dry_run:
        return None, device
    # A login node may have no GPU, so only the jobs look for one.
    return JobOptions(cluster or Local(), device, dry_run), "cpu"


def plan_runs(plans: Iterable[Plan]) -> list[PlannedRun]:
    """Return the runs of several plans.

    Args:
        plans: Experiments and their folders.
    """
    return [
        PlannedRun(experiment, folder)
        for plan in plans
        for experiment, folder in zip(plan.experiments, plan.folders, strict=True)
    ]


class Submission(NamedTuple):
    """Jobs that have been planned or submitted, and have not ended.

    Attributes:
        path: Folder of the runs.
        plan: The plan, or None if all runs were submitted before.
        submitted: Names of new jobs.
        lines: Human-readable lines.
    """

    path: Path
    plan: JobPlan | None
    submitted: list[str]
    lines: list[str]


def train_runs_anywhere(
    planned: Sequence[PlannedRun],
    create: Callable[[], list[RunFolder]],
    path: Path,
    options: RunOptions,
    jobs: JobOptions | None,
) -> Submission | None:
    """Train runs in this process, or as jobs of a cluster.

    Args:
        planned: Runs to train. Those that have ended are left alone.
        create: Function that creates the missing run folders and returns all of them.
        path: Folder of the runs.
        options: How to execute the runs.
        jobs: How runs become jobs, or None to train them here.

    Returns:
        None if all runs have been trained, else what was planned or submitted.

    Raises:
        RunError: If some jobs failed. The others have been waited for.
    """
    if jobs is None:
        train_all(create(), options)
        return None
    _require_plain_options(options, jobs)
    pending = [replace(run, step=step) for run in planned if (step := _next_step(run)) is not None]
    if not pending:
        return None
    jobs.cluster.require_ready(path, options.display.note)
    active = _active_jobs(path)
    busy = _busy_paths(active)
    waiting = [run for run in pending if run.folder.path.resolve() not in busy]
    if waiting:
        plan = _plan(waiting, options, jobs)
        for line in plan.describe():
            options.display.status(line)
        if jobs.dry_run:
            return Submission(path, plan, [], ["nothing was submitted: this was a dry run"])
        records = _submit(plan, create, path, options, jobs)
        names = [record.name for record in records]
    else:
        plan, records, names = None, [state.record for state in active], []
        options.display.status(f"all {len(pending)} runs are in {len(active)} jobs already")
    if not jobs.cluster.wait:
        follow = shell_command("status", path)
        lines = [f"{len(names)} jobs submitted; follow them with: {follow}"]
        lines += ["when they have ended, the same command continues"]
        return Submission(path, plan, names, lines)
    jobs.cluster.wait_for(records, options.display.note)
    _raise_failures(records, path)
    return None


def _require_plain_options(options: RunOptions, jobs: JobOptions) -> None:
    """Raise UserError if options cannot be given to jobs."""
    if options.task is not None and not options.code:
        raise UserError(
            "jobs need a model in a file: pass its place, such as my_vae.py:experiment, instead of "
            "an object"
        )
    if jobs.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"with --cluster, --device is auto, cpu or cuda, got {jobs.device!r}")
    if options.trackers:
        raise UserError("--logger and --tensorboard are not available with --cluster")
    if options.time_limit != float("inf"):
        raise UserError("with --cluster, --time limits a job, and --time-limit does not apply")


def _next_step(run: PlannedRun) -> int | None:
    """Return the step from which a run is trained, or None if it has ended."""
    return resume_step(run.folder) if run.folder.experiment_file.is_file() else 0


def _active_jobs(path: Path) -> list[JobState]:
    """Return the jobs that are queued or running."""
    records = find_records(path) if path.is_dir() else []
    return [state for state in job_states(records) if state.is_active]


def _plan(waiting: Sequence[PlannedRun], options: RunOptions, jobs: JobOptions) -> JobPlan:
    cluster = jobs.cluster
    gpus = cluster.job_gpus(jobs.device)
    if jobs.device == "cuda" and gpus == 0:
        raise UserError(f"--device cuda, but --cluster {cluster.name} has no GPU for a job")
    limit = None if cluster.minutes is None else 60.0 * cluster.minutes
    chosen: dict[str, Any] = {"gpus": gpus, "per_job": cluster.per_job, "limit": limit}
    measure = speed_finder(cluster, options, gpus)
    return make_plan(waiting, slots=cluster.slots(gpus), measure=measure, **chosen)


def _submit(
    plan: JobPlan,
    create: Callable[[], list[RunFolder]],
    path: Path,
    options: RunOptions,
    jobs: JobOptions,
) -> list[JobRecord]:
    """Create run folders and records, and hand the jobs over. An error leaves nothing behind."""
    new = [
        run.folder
        for group in plan.groups
        for run in group.runs
        if not run.folder.experiment_file.is_file()
    ]
    existed, records = path.is_dir(), []
    try:
        create()
        root = path.absolute()
        specs = [_spec(plan, packs, root, options, jobs) for packs in plan.jobs]
        with _only_submitter(path, new):
            records = create_records(root, specs)
            jobs.cluster.submit(root, records, plan.gpus)
    except BaseException:
        for record in records:
            record.withdraw()
        remove_empty_folder(path)
        busy = _busy_paths(_active_jobs(path))
        for folder in new:
            if folder.path.resolve() not in busy:
                folder.withdraw()
        if not existed:
            _delete_if_without_files(path)
        raise
    return records


@contextmanager
def _only_submitter(path: Path, new: Sequence[RunFolder]) -> Iterator[None]:
    """Keep other processes from submitting jobs of the same runs at the same time."""
    try:
        claim = Claim.acquire(path / FOLDER / "submitter")
    except RunInUseError:
        raise UserError(f"another process is submitting jobs of {path}") from None
    try:
        if _busy_paths(_active_jobs(path)) & {folder.path.resolve() for folder in new}:
            raise UserError(
                f"another process has just submitted jobs of {path}; "
                f"see {shell_command('status', path)}"
            )
        yield
    finally:
        claim.release()


def _busy_paths(active: Sequence[JobState]) -> set[Path]:
    return {path for state in active for path in state.paths}


def _delete_if_without_files(path: Path) -> None:
    """Delete a folder and its inner folders if there is no file in them."""
    if path.is_dir() and not any(inner.is_file() for inner in path.rglob("*")):
        for inner in sorted(path.rglob("*"), reverse=True):
            inner.rmdir()
        path.rmdir()


def _spec(
    plan: JobPlan,
    packs: Sequence[Sequence[PlannedRun]],
    root: Path,
    options: RunOptions,
    jobs: JobOptions,
) -> JobSpec:
    threads, data = options.threads, options.data_root
    # A run keeps the number that it began with: the last bits of its results depend on it.
    if threads is None and not plan.gpus and recorded_threads(packs[0][0].folder) is None:
        threads = jobs.cluster.cpus or 1
    names = [[str(run.folder.path.absolute().relative_to(root)) for run in pack] for pack in packs]
    return JobSpec(
        packs=names,
        device="cuda" if plan.gpus else "cpu",
        checkpoint_every=options.checkpoint_every,
        retries=jobs.cluster.retries,
        seconds=plan.job_seconds(packs),
        limit=None if plan.limit is None else plan.limit - jobs.cluster.signal_seconds,
        data_root=None if data is None else str(data.absolute()),
        threads=threads,
        trust_code=bool(options.code),
        evaluate=None if jobs.evaluate is None else list(jobs.evaluate),
        versions=installed_versions(),
    )


def _raise_failures(records: Sequence[JobRecord], path: Path) -> None:
    """Raise an error that names the jobs that did not end well, with their last lines."""
    wrong = []
    for record in records:
        outcome = record.outcome()
        if outcome is not None and outcome["event"] == "ended":
            continue
        lines = ["it was cancelled"] if record.is_cancelled() else None
        if lines is None:
            lines = (
                (outcome or {}).get("lines") or job_output(record) or ["it ended without a word"]
            )
        wrong.append(f"{record.name}: {'; '.join(lines)}")
    if not wrong:
        return
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    command = shell_command("status", path)
    raise RunError(f"{len(wrong)} of {len(records)} jobs failed: {wrong[0]}{more}; see {command}")
