"""Training from Python: start, resume and branch runs, and move their targets."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.fit import recall_code, resolve_source
from controlvae.lab.api.start import TrainingRequest, start_request
from controlvae.lab.cluster.base import Cluster
from controlvae.lab.cluster.submit import (
    JobOptions,
    Submission,
    make_job_options,
    plan_runs,
    train_runs_anywhere,
)
from controlvae.lab.config import Experiment
from controlvae.lab.custom.arguments import check_callbacks
from controlvae.lab.custom.definition import Definition
from controlvae.lab.ranks.launch import launch_function, should_launch
from controlvae.lab.runs.branch import branch_runs
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import LoadedRun, as_folder, load_runs
from controlvae.lab.runs.requests import request_target
from controlvae.lab.runs.user_code import supply_code
from controlvae.lab.training import runner, scheduler
from controlvae.lab.training.display import ConsoleDisplay
from controlvae.lab.training.rank_jobs import leading
from controlvae.lab.training.repair.settings import Repair, check_repair
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.run_setup import Plan, plan_training
from controlvae.lab.training.runner import RunOptions, TrainingResult
from controlvae.lab.training.scheduler import create_folders
from controlvae.lab.training.trackers import LoggerSpec


def train(
    preset: str | Experiment | Definition,
    *,
    run: str | Path | None = None,
    overrides: Overrides = None,
    seeds: int = 1,
    replay: str | Path | None = None,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    tensorboard: bool = False,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    threads: str | int = "auto",
    logger: LoggerSpec = None,
    cluster: Cluster | None = None,
    dry_run: bool = False,
    devices: int | None = None,
    repair: bool | Repair = False,
) -> LoadedRun | list[LoadedRun] | Submission:
    """Train a preset or an experiment.

    Args:
        preset: Name from `controlvae presets`, an experiment, a definition by `lab.define`, or the
            place of one, such as `my_vae.py:experiment`.
        run: Run folder. The default is `runs/PRESET`, or `runs/PRESET-2` and so on if it exists.
        overrides: Settings to change, such as `{"control.target": 20}`.
        seeds: Number of seeds. They train side by side, each in its own folder.
        replay: Run whose recorded weight is replayed open-loop.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        tensorboard: Write TensorBoard files. The same as `logger="tensorboard"`.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        threads: Number of CPU threads, or `auto` to measure which is fastest on this machine now.
        logger: Further destinations of the log: "tensorboard", "wandb", "mlflow", "csv", a class or
            function of a run folder, an object with `write(record)` and `close()`, or a list.
        cluster: `lab.Slurm(...)` or `lab.Local(...)` trains in jobs. The default is this process.
        dry_run: Show the plan of the jobs, and do nothing.
        devices: Processes that train each model together, one per GPU. Under torchrun, leave it
            out.
        repair: Take a run that goes wrong back, change what is wrong and resume it. `lab.Repair`
            sets how often.

    Returns:
        The trained run, or a list of runs if there are several seeds. A dry run, or jobs that are
        not waited for, return what was planned or submitted.

    Raises:
        UserError: If a name, value, file or data set is wrong or missing.
        RunError: If training fails, for example because the loss diverges.
        Interrupted: After Ctrl-C. The run is saved and `lab.resume` continues it.
    """
    jobs, device = make_job_options(cluster, device, dry_run)
    repairs = check_repair(repair, devices=devices, cluster=cluster)
    chosen: dict[str, Any] = {"overrides": overrides, "run": run, "seeds": seeds, "replay": replay}
    if should_launch(devices):
        if jobs is not None:
            raise UserError("devices and cluster cannot be combined; start torchrun in a job")
        assert devices is not None
        parts = (device, time_limit, checkpoint_every, tensorboard, data_root, progress)
        sent = {"preset": preset, "parts": (*parts, logger, threads), **chosen}
        paths = launch_function(_train_on_rank, sent, devices)
        if isinstance(preset, Definition):
            recall_code(paths, preset)
        folders = [RunFolder(Path(path)) for path in paths]
        return load_runs(folders, root=None if data_root is None else Path(data_root))
    options = RunOptions.parse(
        device, time_limit, checkpoint_every, tensorboard, data_root, progress, logger, threads
    )
    options = replace(options, repair=repairs)
    result = start_training(preset, options=options, jobs=jobs, **chosen)
    if isinstance(result, Submission):
        return result
    return load_runs(result.folders, root=options.data_root, device=options.device)


def _train_on_rank(
    preset: str | Experiment | Definition, parts: tuple[Any, ...], **chosen: Any
) -> list[str]:
    """Train on one of several processes. Return the paths of the run folders."""
    options = RunOptions.parse(*parts)
    result = start_training(preset, options=options, **chosen)
    assert isinstance(result, TrainingResult)
    return [str(folder.path) for folder in result.folders]


def start_training(
    preset: str | Experiment | Definition,
    overrides: Overrides = None,
    *,
    options: RunOptions,
    run: str | Path | None = None,
    seeds: int = 1,
    replay: str | Path | None = None,
    command: str | None = None,
    jobs: JobOptions | None = None,
) -> TrainingResult | Submission:
    """Train a preset or an experiment without loading the result.

    Args:
        preset: Name of a preset, or an experiment.
        overrides: Settings to change.
        options: How to execute the runs.
        run: Run folder.
        seeds: Number of seeds.
        replay: Run whose recorded weight is replayed open-loop.
        command: Shell command that repeats the training, for `experiment.json`.
        jobs: How runs become jobs, or None to train in this process.
    """
    if seeds < 1:
        raise UserError(f"seeds must be at least 1, got {seeds}")
    command = command or _train_command(preset, as_assignments(overrides), seeds)
    if jobs is not None:
        source, options = resolve_source(preset, options)
        plan = plan_training(
            source,
            overrides,
            run=None if run is None else Path(run),
            seeds=seeds,
            replay=None if replay is None else Path(replay),
            root=options.data_root,
            note=options.display.note,
            may_exist=True,
        )
        return _train_in_jobs(plan, plan.reserved or Path(run or ""), options, command, jobs)
    options = options.join_ranks(options.sharded)
    request = TrainingRequest(
        lambda: resolve_source(preset, options), overrides, run, seeds, replay, command
    )
    return start_request(request, options)


def _train_in_jobs(
    plan: Plan, path: Path, options: RunOptions, command: str, jobs: JobOptions
) -> TrainingResult | Submission:
    """Train planned runs in jobs. A folder that was reserved for nothing is deleted."""

    def create() -> list[RunFolder]:
        return create_folders(plan, command, code=options.code)

    try:
        left = train_runs_anywhere(plan_runs([plan]), create, path, options, jobs)
    finally:
        if plan.reserved is not None and not any(plan.reserved.iterdir()):
            plan.reserved.rmdir()
    if left is not None:
        return left
    steps = plan.experiments[0].training.steps
    return TrainingResult(plan.folders, steps, steps)


def resume(
    run: LoadedRun | RunFolder | str | Path,
    model: Any = None,
    dataset: Any = None,
    *,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 30.0,
    tensorboard: bool = False,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    callbacks: Sequence[Callable[[Any], None]] = (),
    trust_code: bool = False,
    threads: str | int = "auto",
    logger: LoggerSpec = None,
    devices: int | None = None,
    sharded: bool = False,
    repair: bool | Repair = False,
    **settings: Any,
) -> LoadedRun | list[LoadedRun]:
    """Resume a run, or all runs in a folder, from the last intact checkpoint.

    The result is the same as that of an uninterrupted run.

    Args:
        run: Run, run folder, or folder of runs.
        model: User-supplied model of the run: a module, class or function, as in `lab.fit`.
        dataset: User-supplied data of the run.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        tensorboard: Write TensorBoard files. The same as `logger="tensorboard"`.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        callbacks: Functions that receive `Progress` updates.
        trust_code: Import and execute the code that a run folder names.
        threads: Number of CPU threads. `auto` is the number that the run was started with.
        logger: Further destinations of the log: "tensorboard", "wandb", "mlflow", "csv", a class or
            function of a run folder, an object with `write(record)` and `close()`, or a list.
        devices: Processes that train each model together from now on, one per GPU. Under torchrun,
            leave it out.
        sharded: Shard a user-supplied model over the processes with FSDP2.
        repair: Repair the run if it goes wrong from now on. Earlier repairs stay in force.
        **settings: Further arguments of `lab.fit` that are code: `likelihood` if it is a function,
            `inputs`, `optimiser`, `scheduler`, `validation` if it is data, `workers` and `cache`.

    Returns:
        The run, or a list of runs.

    Raises:
        UserError: If a run cannot be read, or its data is missing.
        RunError: If training fails.
        Interrupted: After Ctrl-C. The runs are saved.
    """
    if data_root is None and isinstance(run, LoadedRun):
        data_root = run.root
    parts = (
        device,
        time_limit,
        checkpoint_every,
        tensorboard,
        data_root,
        progress,
        logger,
        threads,
    )
    options = RunOptions.parse(*parts)
    path = as_folder(run).path
    if model is not None:
        folders = find_runs(path)
        settings["in_place"] = len(folders) == 1
        for folder in folders:
            supply_code(folder, model, dataset, options.data_root, **settings)
    repairs = check_repair(repair, devices=devices)
    functions = check_callbacks(callbacks)
    options = replace(options, callbacks=functions, trust_code=trust_code, repair=repairs)
    if should_launch(devices):
        assert devices is not None
        chosen = {"callbacks": callbacks, "trust_code": trust_code, "sharded": sharded}
        code = {"model": model, "dataset": dataset, **settings}
        launch_function(_resume_on_rank, {"path": path, "parts": parts, **chosen, **code}, devices)
        folders = find_runs(path)
    else:
        folders = resume_folders(path, options, sharded)
    return load_runs(folders, root=options.data_root, device=options.device)


def _resume_on_rank(path: Path, parts: tuple[Any, ...], **chosen: Any) -> None:
    """Resume on one of several processes."""
    names = ("device", "time_limit", "checkpoint_every", "tensorboard", "data_root", "progress")
    options = dict(zip((*names, "logger", "threads"), parts, strict=True))
    chosen.pop("in_place", None)
    resume(path, **options, **chosen)


def resume_folders(path: Path, options: RunOptions, sharded: bool = False) -> list[RunFolder]:
    """Resume the run at a path, or all runs below it, on all ranks of the job.

    Args:
        path: Run folder, or folder of runs.
        options: How to execute the runs.
        sharded: Shard user-supplied models over the ranks.
    """
    options = options.join_ranks(sharded)
    if not options.group.leads:
        return runner.follow_runs(options).folders
    with leading(options.group):
        return scheduler.resume_all(path, options)


def branch(
    run: LoadedRun | RunFolder | str | Path, to: str | Path, overrides: Overrides = None
) -> LoadedRun | list[LoadedRun]:
    """Create a run that continues from another run's checkpoint with other settings.

    Weights, optimiser, controller and log are those of the parent. `resume` trains the new run.

    Args:
        run: Run, run folder, or folder of runs.
        to: Folder of the new run, or of one run per seed.
        overrides: Settings to change, such as `{"control.target": 20}`.
    """
    source, assignments = as_folder(run).path, as_assignments(overrides)
    options = [word for text in assignments for word in ("--set", text)]
    command = shell_command("branch", source, to, *options)
    return load_runs(branch_runs(find_runs(source), source, Path(to), assignments, command))


def branch_folders(source: Path, to: Path, assignments: list[str], command: str) -> str:
    """Create branches without loading them, and return a line that says how to train them.

    Args:
        source: Run folder, or folder of runs.
        to: Folder of the new run, or of one run per seed.
        assignments: Settings to change, such as `control.target=20`.
        command: Shell command that repeats this.
    """
    note = ConsoleDisplay().note
    children = branch_runs(find_runs(source), source, to, assignments, command, note)
    step, resume = latest_step(children[0].checkpoints), shell_command("resume", to)
    return f"{to} continues from {source} at step {step:,}; train it with: {resume}"


def set_target(run: LoadedRun | RunFolder | str | Path, target: float) -> list[RunFolder]:
    """Request another set point for a run, without a jump in β.

    A run in training applies it within a second, a stopped run when it is resumed. In a folder of
    runs, those that have ended are skipped. A target outside the known reach prints a note.

    Args:
        run: Run, run folder, or folder of runs.
        target: New set point in nats per example.

    Returns:
        The run folders with a request.

    Raises:
        UserError: If every run has ended, or a law cannot take this target.
    """
    folders = find_runs(as_folder(run).path)
    active = [folder for folder in folders if not folder.has_ended()] or folders[:1]
    for folder in active:
        if note := request_target(folder, target):
            ConsoleDisplay().note(f"{folder.path}: {note}")
    return active


def _train_command(
    preset: str | Experiment | Definition, assignments: list[str], seeds: int
) -> str:
    """Return the shell command that repeats a training from Python."""
    if not isinstance(preset, str):
        return f"lab.train({preset.name!r}, ...) in Python, with an experiment of the user"
    options = [word for text in assignments for word in ("--set", text)]
    return shell_command("train", preset, *options, *(["--seeds", seeds] if seeds > 1 else []))
