"""Running training: options, data and engine, signals, progress and the final status."""

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from controlvae.errors import Interrupted, UserError, shell_command
from controlvae.lab.config import CustomModel, Experiment
from controlvae.lab.custom.engine import CustomEngine
from controlvae.lab.custom.task import CustomTask, remember_task
from controlvae.lab.custom.units_check import find_reduction
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.device import pick_device
from controlvae.lab.engines.ranked import LeadEngine
from controlvae.lab.engines.select import check_compatible, make_engine
from controlvae.lab.io import write_text
from controlvae.lab.ranks.group import (
    ALONE,
    LAUNCHED_VARIABLE,
    LostRanksError,
    RankGroup,
    agree,
    join_group,
    require_same,
    under_torchrun,
)
from controlvae.lab.ranks.launch import record_resume
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.claim import RunInUseError
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.unattended import KILLED_VARIABLE, note_runs
from controlvae.lab.runs.user_code import check_same_model, find_task
from controlvae.lab.training.display import Display, make_display
from controlvae.lab.training.durations import parse_duration
from controlvae.lab.training.loop import Run, divergence_message, train_runs
from controlvae.lab.training.rank_jobs import (
    RankJob,
    announce,
    check_ranks,
    describe_job,
    explain_loss,
    follow_jobs,
)
from controlvae.lab.training.repair.settings import Repair
from controlvae.lab.training.repair.supervise import (
    last_good_tensors,
    record_kill,
    train_repairing,
)
from controlvae.lab.training.restore import Session
from controlvae.lab.training.run_setup import Plan
from controlvae.lab.training.run_threads import parse_threads, training_threads
from controlvae.lab.training.stopping import (
    Callbacks,
    StopRequest,
    catch_stop_signals,
    end_workers,
)
from controlvae.lab.training.summary import describe_custom_setup, describe_end, describe_setup
from controlvae.lab.training.trackers import (
    LoggerSpec,
    TensorBoard,
    TrackerFactory,
    make_trackers,
    open_trackers,
    require_tracker_per_run,
)
from controlvae.lab.training.validation import CustomValidator, Validator


@dataclass(frozen=True)
class RunOptions:
    """Options that affect how a run is executed but not what it computes."""

    device: torch.device
    time_limit: float = math.inf  # seconds
    checkpoint_every: float = 30.0  # seconds
    trackers: tuple[TrackerFactory, ...] = ()
    data_root: Path | None = None
    display: Display = field(default_factory=Display)
    task: CustomTask | None = None  # user-supplied model and data
    trust_code: bool = False  # import the code that a run folder names
    callbacks: tuple[Callable[[Any], None], ...] = ()  # receive `Progress` updates
    threads: int | None = None  # of a CPU; None chooses them
    stop: StopRequest | None = None  # instead of Ctrl-C and SIGTERM
    group: RankGroup = ALONE  # processes that train each model together
    sharded: bool = False  # over the ranks, with FSDP2
    repair: Repair | None = None  # repair runs that go wrong; None leaves them

    @classmethod
    def parse(
        cls,
        device: str | torch.device = "auto",
        time_limit: str | float | None = None,
        checkpoint_every: str | float = 30.0,
        tensorboard: bool = False,
        data_root: str | Path | None = None,
        progress: bool | Callable[[Any], None] | Display = True,
        logger: LoggerSpec = None,
        threads: str | int = "auto",
    ) -> "RunOptions":
        """Check options before any run folder is created.

        Args:
            device: `auto`, `cpu`, `cuda` or `cuda:1`.
            time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
            checkpoint_every: Time between checkpoints, in the same form.
            tensorboard: Write TensorBoard files.
            data_root: Data folder that is searched first.
            progress: True prints progress, False is silent, a function receives the updates.
            logger: Further destinations of the log, as `make_trackers` takes them.
            threads: Number of CPU threads, or `auto`.

        Raises:
            UserError: If an option is not usable.
        """
        # Of several ranks only the first one prints, also before it has joined the others.
        is_silent = under_torchrun() and os.environ["RANK"] != "0"
        display = make_display(False if is_silent else progress)
        root = None if data_root is None else Path(data_root)
        data_roots(root)
        trackers = make_trackers(logger)
        if tensorboard and TensorBoard not in trackers:
            trackers += make_trackers("tensorboard")
        limit = math.inf
        if time_limit is not None:
            limit = parse_duration("--time-limit", time_limit, display.note)
        every = parse_duration("--checkpoint-every", checkpoint_every, display.note)
        count = parse_threads(threads)
        return cls(pick_device(device), limit, every, trackers, root, display, threads=count)

    def join_ranks(self, sharded: bool = False) -> "RunOptions":
        """Return options for the rank of this process, which joins the others.

        Outside of torchrun one process trains whole models. Ranks other than 0 print nothing.

        Args:
            sharded: Shard user-supplied models over the ranks.

        Raises:
            UserError: If the ranks cannot find each other.
        """
        group = join_group(self.device)
        if group.is_alone:
            return replace(self, sharded=False)
        options = replace(self, group=group, device=group.pick_device(self.device), sharded=sharded)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if group.leads:
            return options
        return replace(options, display=Display(), trackers=(), callbacks=())

    @property
    def rank_arguments(self) -> list[str]:
        """Arguments that start as many processes again, if this package started them."""
        launched = LAUNCHED_VARIABLE in os.environ
        return ["--devices", str(self.group.size)] if launched else []

    @property
    def code(self) -> str:
        """File and name of user-supplied code, or an empty text."""
        return "" if self.task is None else self.task.location

    @property
    def data_root_arguments(self) -> list[str]:
        """Arguments that let another command find the same data."""
        return [] if self.data_root is None else ["--data-root", str(self.data_root)]


class TrainingResult(NamedTuple):
    """Outcome of training runs side by side."""

    folders: list[RunFolder]
    step: int
    steps: int

    @property
    def finished(self) -> bool:
        """True if no step is left to train."""
        return self.step >= self.steps


class TrainingSetup(NamedTuple):
    """Engine, validator and data of runs that train side by side."""

    engine: Engine
    validator: Validator | None
    fingerprint: str  # of the data
    description: list[str]  # human-readable lines about the data
    metadata: tuple[str, str]  # name and text of the file that lets models work without their data
    code: str = ""  # file and name of a user-supplied task
    save_at_start: bool = False  # initial weights cannot be made again from the seed
    wrong_units: tuple[float, str] | None = None  # factor of the reconstruction, and what it is


def start_runs(plan: Plan, options: RunOptions, command: str) -> TrainingResult:
    """Train planned runs from the beginning.

    The engine is created first, so that settings that do not fit together leave no folder behind.

    Args:
        plan: Experiments and their folders.
        options: How to execute the runs.
        command: Shell command that repeats them, for `experiment.json`.

    Raises:
        Interrupted: After Ctrl-C or SIGTERM. The runs can be resumed.
    """
    try:
        require_tracker_per_run(options.trackers, len(plan.folders))
        setup = _prepare(plan.experiments, options, plan.folders)
    except BaseException:
        if plan.reserved is not None:
            with suppress(OSError):
                plan.reserved.rmdir()
        raise
    for experiment, folder in zip(plan.experiments, plan.folders, strict=True):
        try:
            folder.create(experiment, command, code=setup.code, job=options.group.job)
        except OSError as error:
            raise UserError(
                f"cannot create the run folder {folder.path}: {error.strerror}"
            ) from None
    runs = _open_all(plan.folders)
    for run in runs:
        run.data = setup.fingerprint
    for run, experiment in zip(runs, plan.experiments, strict=True):
        if run.experiment != experiment:
            raise UserError(
                f"another process started a run in {run.folder.path} at the same time; "
                "choose another --run"
            )
    return _train(runs, setup, options)


def resume_runs(
    folders: Sequence[RunFolder],
    options: RunOptions,
    resume_command: str | None = None,
    withdraw: bool = False,
) -> TrainingResult | None:
    """Resume runs side by side from their last intact checkpoints.

    Args:
        folders: Runs that one engine can train. Of several, those that have ended are left alone.
        options: How to execute the runs.
        resume_command: Command to print if they are stopped. The default resumes these runs.
        withdraw: Delete run folders that cannot start, because their data is missing.

    Returns:
        The outcome, or None if every run had ended.

    Raises:
        Interrupted: After Ctrl-C or SIGTERM. The runs can be resumed.
    """
    parent = _common_path(folders)
    # Other processes may have trained some of several runs since they were chosen.
    if len(folders) > 1:
        folders = [folder for folder in folders if resume_step(folder) is not None]
    if not folders:
        report = shell_command("report", parent, *options.data_root_arguments)
        options.display.status(f"every run in {parent} has ended. See them with: {report}")
        return None
    _record_kill(folders)
    ended = [folder.has_ended() for folder in folders]
    runs = _open_all(folders)
    try:
        if [run.folder.has_ended() for run in runs] != ended:
            raise RunInUseError(f"another process has just trained runs in {parent}; try again")
        setup = _prepare([run.experiment for run in runs], options, folders)
    except BaseException:
        for run in runs:
            run.logger.close()
        for folder in folders if withdraw else ():
            if not folder.events():
                folder.withdraw()
        raise
    for run in runs:
        run.data = setup.fingerprint
    return _train(runs, setup, options, resume_command)


def resume_step(folder: RunFolder) -> int | None:
    """Return the step of the newest intact checkpoint, or None if no training is left.

    A finished run that has lost its last checkpoint resumes from the previous one. A finished run
    without any checkpoint has ended all the same: runs may be archived without their weights.
    """
    ended = folder.has_ended()
    try:
        step = checkpoint.latest_intact_step(folder.checkpoints) or 0
    except UserError:
        if ended:  # no checkpoint is intact: the metrics on disk are all that is left
            return None
        raise
    if not ended:
        return step
    finished = folder.events()[-1]["event"] == "finished"
    return step if finished and 0 < step < folder.experiment().training.steps else None


def _record_kill(folders: Sequence[RunFolder]) -> None:
    """Record that the process which trained these runs was killed, if a supervisor says so."""
    reason = os.environ.pop(KILLED_VARIABLE, "")
    for folder in folders if reason else ():
        if not folder.has_ended():
            record_kill(folder, reason)


def _open_all(folders: Sequence[RunFolder]) -> list[Run]:
    """Lock all of these run folders, or none."""
    runs: list[Run] = []
    try:
        for folder in folders:
            runs.append(Run.open(folder))
    except BaseException:
        for run in runs:
            run.logger.close()
        raise
    return runs


def follow_runs(options: RunOptions, planned: Sequence[Experiment] | None = None) -> TrainingResult:
    """Train along with rank 0 until it has no further runs.

    Args:
        options: How to execute the runs, on a rank other than 0.
        planned: Experiments that this rank was started with. None takes those of rank 0.
    """

    def prepare(job: RankJob) -> Engine:
        folders = [RunFolder(path) for path in job.folders]
        same = replace(options, sharded=job.sharded)
        return _prepare_engine(job.experiments, same, folders).engine

    return TrainingResult(follow_jobs(options.group, prepare, planned), 0, 0)


def _prepare(
    experiments: Sequence[Experiment], options: RunOptions, folders: Sequence[RunFolder]
) -> TrainingSetup:
    """Load the data and create the engine of experiments, on all ranks if there are several."""
    group = options.group
    if group.is_alone:
        return _prepare_engine(experiments, options, folders)
    paths = [folder.path.absolute() for folder in folders]
    announce(group, RankJob(list(experiments), paths, options.sharded))
    require_same(group, describe_job(experiments))
    setup = _prepare_engine(experiments, options, folders)
    return setup._replace(engine=LeadEngine(setup.engine, group, gathers=options.sharded))


def _prepare_engine(
    experiments: Sequence[Experiment], options: RunOptions, folders: Sequence[RunFolder]
) -> TrainingSetup:
    """Load the data and create the engine of experiments that train side by side."""
    first, device, group = experiments[0], options.device, options.group
    with agree(group):
        check_compatible(experiments)
        check_ranks(first, group, options.sharded)
    if isinstance(first.model, CustomModel):
        with agree(group):
            task = options.task or find_task(folders[0], trust_code=options.trust_code)
        return _prepare_custom(experiments, task, options, folders)
    with agree(group):
        examples = load_dataset(first.data, options.data_root).to(device)
    require_same(group, {"data": examples.fingerprint()})
    engine = make_engine(experiments, examples, device, group, options.display.note)
    validator = None
    if first.training.validate_every > 0 and group.leads:
        validator = Validator(experiments, examples, device, options.data_root)
    description = describe_setup(first, examples, validator)
    metadata = examples.metadata_file, examples.metadata()
    return TrainingSetup(engine, validator, examples.fingerprint(), description, metadata)


def _prepare_custom(
    experiments: Sequence[Experiment],
    task: CustomTask,
    options: RunOptions,
    folders: Sequence[RunFolder],
) -> TrainingSetup:
    """Create the engine of user-supplied models, and let this process remember their code."""
    first, device, note = experiments[0], options.device, options.display.note
    group = options.group
    require_same(group, {"data": "" if group.is_alone else task.data_digest()})
    if options.repair is not None:
        for folder in folders:
            if tensors := last_good_tensors(folder):
                task.recover_weights(tensors)
    trainers = task.make_trainers(experiments, device, note, group, options.sharded)
    wrong_units = None
    if repairs_itself(first, options):
        wrong_units = find_reduction(trainers[0].vae, task.example_batch(device))
    for folder, trainer in zip(folders, trainers, strict=True):
        if group.leads:
            check_same_model(folder, trainer.vae.module)
        remember_task(folder.path, task)
    engine = CustomEngine(trainers, note, capture=task.capture and group.is_alone)
    validator, found = None, None
    if first.training.validate_every and group.leads:
        found = task.validation_examples(first, device)
    if found is not None:
        validator = CustomValidator(trainers, *found)
    return TrainingSetup(
        engine,
        validator,
        task.data.data.fingerprint(),
        describe_custom_setup(first, task, trainers[0], validator),
        ("user_data.json", task.data_metadata(first)),
        task.location,
        save_at_start=True,
        wrong_units=wrong_units,
    )


def _train(
    runs: Sequence[Run],
    setup: TrainingSetup,
    options: RunOptions,
    resume_command: str | None = None,
) -> TrainingResult:
    """Train opened runs from their newest checkpoints to the end, and repair them if asked to."""
    began = time.monotonic()
    note_runs([run.folder.path for run in runs])
    repair = options.repair if repairs_itself(runs[0].experiment, options) else None
    if repair is None:
        return _train_and_close(runs, setup, options, resume_command)

    def resume(folders: list[RunFolder]) -> None:
        left = options.time_limit - (time.monotonic() - began)
        resume_runs(folders, replace(options, time_limit=max(left, 0.0)), resume_command)

    train = partial(_train_and_close, runs, setup, options, resume_command)
    result = train_repairing(runs, repair, setup.wrong_units, train, resume, options.display)
    saved = [checkpoint.latest_step(run.folder.checkpoints) or 0 for run in runs]
    step = min(saved) if result is None else min(result.step, *saved)
    return TrainingResult([run.folder for run in runs], step, runs[0].experiment.training.steps)


def repairs_itself(experiment: Experiment, options: RunOptions) -> bool:
    """Return whether a run is watched and repaired.

    Args:
        experiment: Settings of the run.
        options: How to execute it.
    """
    is_custom = isinstance(experiment.model, CustomModel)
    repair = options.repair
    return repair is not None and options.group.is_alone and (repair.custom or not is_custom)


def _train_and_close(
    runs: Sequence[Run],
    setup: TrainingSetup,
    options: RunOptions,
    resume_command: str | None = None,
) -> TrainingResult:
    """Train opened runs from their newest checkpoints to the end, and close their engine."""
    parent = _common_path([run.folder for run in runs])
    arguments = [*options.data_root_arguments, *options.rank_arguments]
    resume = resume_command or shell_command("resume", parent, *arguments)
    record_resume(resume)
    try:
        return _train_open(runs, setup, options, resume)
    except LostRanksError as error:
        saved = checkpoint.latest_step(runs[0].folder.checkpoints)
        raise explain_loss(error, saved, resume) from error
    finally:
        if isinstance(setup.engine, LeadEngine):
            setup.engine.close()


def _train_open(
    runs: Sequence[Run], setup: TrainingSetup, options: RunOptions, resume: str
) -> TrainingResult:
    """Train opened runs from their newest checkpoints to the end."""
    engine, parent = setup.engine, _common_path([run.folder for run in runs])
    session, display = Session(runs, engine, str(options.device)), options.display
    report = shell_command("report", parent, *options.data_root_arguments)
    for line in session.warnings:
        display.note(line)
    for run in runs:
        if run.watch is not None:
            run.watch.records.extend(run.folder.records())
    result = TrainingResult([run.folder for run in runs], engine.step, session.steps)
    if session.finished:
        with session:
            display.status(f"{parent} is finished: step {session.steps:,}. See it with: {report}")
        return result
    quiet = not options.group.is_alone
    caught = options.stop.during_training() if options.stop else catch_stop_signals(display, quiet)
    with session, caught as stop:
        for line in setup.description:
            display.note(line)
        name, text = setup.metadata
        for run in runs:
            write_text(run.folder.path / name, text)
        threads = training_threads(
            runs,
            engine,
            requested=options.threads,
            device=options.device,
            time_limit=options.time_limit,
            note=display.note,
        )
        with threads, end_workers(engine):
            callbacks = Callbacks(options.callbacks, stop)
            _show_training(runs, setup, options, callbacks)
    if callbacks.failure is not None:
        raise callbacks.failure
    result = result._replace(step=engine.step)
    _report_end(runs, result, display, resume=resume, report=report, interrupted=stop.is_set())
    return result


def _show_training(
    runs: Sequence[Run], setup: TrainingSetup, options: RunOptions, callbacks: Callbacks
) -> None:
    """Train with a progress display and the requested loggers."""
    experiments = [run.experiment for run in runs]
    updates = train_runs(
        runs,
        setup.engine,
        time_limit=options.time_limit,
        checkpoint_every=options.checkpoint_every,
        stop=callbacks.should_stop,
        validator=setup.validator,
        save_at_start=setup.save_at_start,
    )
    display = options.display.training(experiments, setup.engine.step)
    loggers = open_trackers(options.trackers, [run.folder for run in runs])
    with loggers as write_records, display as show:
        for progress in updates:
            show(progress)
            callbacks.call(progress)
            write_records(progress.records)


def _report_end(
    runs: Sequence[Run],
    result: TrainingResult,
    display: Display,
    *,
    resume: str,
    report: str,
    interrupted: bool,
) -> None:
    """Show the final status and the commands that resume or report the runs."""
    for run in runs:
        if run.diverged_at is not None:
            display.note(divergence_message(run))
        elif run.monitor.out_of_reach:
            display.note(
                f"{run.folder.path}: the target stayed out of reach, with β at its bound; "
                "see the report"
            )
        elif run.monitor.collapsed:
            display.note(f"{run.folder.path}: the code stayed collapsed; see the report")
    step, steps = result.step, result.steps
    if not result.finished:
        line = f"stopped at step {step:,} of {steps:,}; resume with: {resume}"
    else:
        end = f": {describe_end(runs[0])}" if len(runs) == 1 else ""
        line = f"finished at step {step:,}{end}; see it with: {report}"
    display.status(line)
    if interrupted and result.finished:
        # Ctrl-C in the last steps: whatever the caller would do next must not start.
        display.status(f"do the rest with: {resume}")
    if interrupted:
        raise Interrupted(line)


def _common_path(folders: Sequence[RunFolder]) -> Path:
    """Return the run folder itself, or the nearest folder that contains all of them."""
    return Path(os.path.commonpath([folder.path for folder in folders]))
