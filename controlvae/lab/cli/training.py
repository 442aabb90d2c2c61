"""`train` and `resume`: folders, signals, the bar and the words at the end."""

import math
import os
import re
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import typer

from controlvae.diagnostics.collapse import describe_used_latents
from controlvae.errors import UserError, shell_command
from controlvae.lab.cli.device import pick_device
from controlvae.lab.cli.progress import training_bar
from controlvae.lab.config import Experiment, describe_likelihood, override, preset
from controlvae.lab.data.dataset import BinaryImages, Dataset, ImageDataset
from controlvae.lab.data.paths import data_roots
from controlvae.lab.data.registry import load_dataset, validation_settings
from controlvae.lab.data.validation_split import count_validation_examples
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.engines.select import check_compatible, make_engine
from controlvae.lab.io import write_text
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.replay import replayed
from controlvae.lab.training import loop as training_loop
from controlvae.lab.training.branch import beginnings, branch, must_fit
from controlvae.lab.training.loop import Run, train
from controlvae.lab.training.resolve import infer_likelihood
from controlvae.lab.training.session import Session
from controlvae.lab.training.trackers import TensorBoard, require_tensorboard
from controlvae.lab.training.validation import Validator
from controlvae.laws import TuningWarning


class RunOptions(NamedTuple):
    """Options that change how a run is carried out and nothing in what it computes."""

    device: torch.device
    time_limit: float
    checkpoint_every: float
    tensorboard: bool
    data_root: Path | None

    @property
    def describe_data_root(self) -> list[str]:
        """What a command needs to find the same data."""
        return [] if self.data_root is None else ["--data-root", str(self.data_root)]


def options(
    device: str,
    time_limit: str | None,
    checkpoint_every: str,
    tensorboard: bool,
    data_root: Path | None,
) -> RunOptions:
    """The options, checked: before a run folder is made, so that a wrong one leaves nothing behind."""
    data_roots(data_root)
    if tensorboard:
        require_tensorboard()
    limit = math.inf if time_limit is None else _seconds("--time-limit", time_limit)
    return RunOptions(
        pick_device(device),
        limit,
        _seconds("--checkpoint-every", checkpoint_every),
        tensorboard,
        data_root,
    )


class Plan(NamedTuple):
    """Runs to make: what each computes and where it goes."""

    experiments: list[Experiment]
    folders: list[RunFolder]
    claimed: Path | None = None  # a folder that was made to keep its name from others


def plan(
    name: str,
    sets: list[str],
    run: Path | None,
    seeds: int,
    replay: Path | None = None,
    root: Path | None = None,
) -> Plan:
    """What a `train` command asks for, one run per seed. Nothing is written yet; a folder of our naming is claimed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TuningWarning)
        experiment = override(preset(name), sets)
    experiment = infer_likelihood(experiment, sets, root)
    if replay is not None:
        if any(text.startswith("control") for text in sets):
            raise UserError("--replay gives the weight; leave --set control out")
        experiment = replayed(experiment, find_runs(replay))
    # The paper's rules for gains are about a KL in nats, not about a total correlation.
    for message in {
        str(warning.message)
        for warning in caught
        if sets and experiment.controlled_quantity == "kl"
    }:
        print(f"controlvae: note: {message}", file=sys.stderr)
    if run is None:
        claimed = _claimed(Path("runs") / name)
        return plan_seeds(experiment, claimed, seeds)._replace(claimed=claimed)
    planned = plan_seeds(experiment, run, seeds)
    for folder in planned.folders:
        folder.must_be_free()
    return planned


def plan_seeds(experiment: Experiment, path: Path, seeds: int, apart: bool = False) -> Plan:
    """One run per seed from the experiment's own on; where there are several, or `apart`, each in its own folder."""
    numbers = range(experiment.training.seed, experiment.training.seed + seeds)
    experiments = [override(experiment, [f"training.seed={seed}"]) for seed in numbers]
    folders = (
        [RunFolder(path)]
        if seeds == 1 and not apart
        else [RunFolder(path / f"seed-{seed}") for seed in numbers]
    )
    return Plan(experiments, folders)


def start(plan: Plan, how: RunOptions, command: str) -> None:
    """Trains from the beginning. The engine comes first: settings that do not fit together leave no folder behind."""
    try:
        machinery = _machinery(plan.experiments, how)
    except BaseException:
        if plan.claimed is not None:
            with suppress(OSError):
                plan.claimed.rmdir()
        raise
    for experiment, folder in zip(plan.experiments, plan.folders, strict=True):
        try:
            folder.create(experiment, command)
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder.path}: {error.strerror}") from None
    runs = [Run.open(folder, machinery.data) for folder in plan.folders]
    for run, experiment in zip(runs, plan.experiments, strict=True):
        if run.experiment != experiment:
            raise UserError(
                f"another process began a run in {run.folder.path} at the same time; choose another --run"
            )
    _go(runs, machinery, how)


def resume(
    folders: Sequence[RunFolder], how: RunOptions, again: str | None = None, made: bool = False
) -> None:
    """Goes on from the last good checkpoints. Of several runs, those that have nothing more to do are left alone.

    `again` says what to do if they are stopped, where it is not to resume these. Of folders that the command at hand
    has `made`, those it cannot begin, because their data is not there, are not left behind.
    """
    home = _home(folders)
    if len(folders) > 1:  # also of those just chosen: others may have trained them since
        folders = [folder for folder in folders if resume_step(folder) is not None]
    if not folders:
        typer.echo(
            f"every run in {home} has ended. See them with: {shell_command('report', home, *how.describe_data_root)}"
        )
        return
    runs = [Run.open(folder) for folder in folders]  # and from here on nobody else may
    try:
        machinery = _machinery([run.experiment for run in runs], how)
    except BaseException:
        for folder in folders if made else ():
            if not folder.events():
                folder.withdraw()
        raise
    for run in runs:
        run.data = machinery.data
    _go(runs, machinery, how, again)


def branch_off(
    parents: Sequence[RunFolder], home: Path, to: Path, sets: list[str], command: str
) -> None:
    """A new run below `to` for each of these below `home`, with its settings but for `sets`. All are made, or none."""
    if home.resolve() in to.resolve().parents:
        raise UserError(
            f"{to} lies within {home}, which it would become a part of; choose another folder"
        )
    starts = beginnings(parents)
    stand = [checkpoint.latest_intact_step(parent.checkpoints) or 0 for parent in parents]
    if starts[0].saved.step < min(
        stand
    ):  # where a kill between two checkpoints leaves that of the one behind
        steps = ", ".join(f"{step:,}" for step in sorted(set(stand)))
        raise UserError(f"the runs in {home} stand apart, at steps {steps}: branch them one by one")
    experiments = [override(parent.experiment(), sets) for parent in parents]
    children = [RunFolder(to / parent.path.relative_to(home)) for parent in parents]
    if len(parents) > 1 and any(
        new.training.seed != old.experiment().training.seed
        for new, old in zip(experiments, parents, strict=True)
    ):
        raise UserError(
            f"{home} holds {len(parents)} runs; name one of them to give it another seed"
        )
    for start, child, experiment in zip(starts, children, experiments, strict=True):
        child.must_be_free("choose another folder")
        must_fit(start, experiment)
        for line in start.notes:
            print(f"controlvae: {start.run.path}: {line}; using the one before it", file=sys.stderr)
    try:
        for start, child, experiment in zip(starts, children, experiments, strict=True):
            branch(start, child, experiment, command)
    except BaseException:
        for child in children:  # all were free
            shutil.rmtree(child.path, ignore_errors=True)
        raise
    again = shell_command("resume", to)
    typer.echo(
        f"{to} stands where {home} does, at step {starts[0].saved.step:,}; train it with: {again}"
    )


def resume_step(folder: RunFolder) -> int | None:
    """The step of the newest whole checkpoint, from which training goes on; None where it has nothing more to do.

    A run that finished and has lost its last checkpoint goes on from the one before. One without any has ended all the
    same: runs are packed without their weights.
    """
    ended = folder.ended()
    try:
        step = checkpoint.latest_intact_step(folder.checkpoints) or 0
    except UserError:
        if ended:  # none is whole: what was measured before is left
            return None
        raise
    if not ended:
        return step
    lost = (
        folder.events()[-1]["event"] == "finished" and 0 < step < folder.experiment().training.steps
    )
    return step if lost else None


class TrainingSetup(NamedTuple):
    """What trains some runs, what looks at their validation examples where there are some, and their data."""

    engine: Engine
    validator: Validator | None
    data: str  # its fingerprint
    words: list[str]  # what it is, for people
    kept: tuple[str, str]  # what its models need of it to work without it: a file's name and text


def _machinery(experiments: Sequence[Experiment], how: RunOptions) -> TrainingSetup:
    check_compatible(experiments)
    examples = load_dataset(experiments[0].data, how.data_root).to(how.device)
    looked_at = experiments[0].training.validate_every > 0
    engine = make_engine(experiments, examples, how.device)
    validator = Validator(experiments, examples, how.device, how.data_root) if looked_at else None
    kept = examples.metadata_file, examples.metadata()
    return TrainingSetup(
        engine, validator, examples.fingerprint(), _what(experiments[0], examples, validator), kept
    )


def _what(experiment: Experiment, examples: Dataset, validator: Validator | None) -> list[str]:
    """What is trained on and in what its reconstruction is counted; a note where the two do not suit each other."""
    shape, validation = "x".join(map(str, examples.shape)), experiment.training.validation
    size = f"{len(examples):,} examples" + (
        f" of {shape}" if isinstance(examples, ImageDataset) else ""
    )
    never = "" if validator else ", never looked at: set training.validate_every"
    if not validation:
        kept = ""
    elif validation_settings(experiment.data) is not None:
        number = (
            f"{len(validator.indices):,} of {len(validator.examples):,} in " if validator else ""
        )
        kept = f", {number}its validation part for validation{never}"
    else:
        count = count_validation_examples(len(examples), validation)
        kept = (
            f", {len(examples) - count:,} of them to train on and {count:,} for validation{never}"
        )
    lines = [
        f"data: {examples.source}; {examples.split}; {size}{kept}",
        f"reconstruction: {describe_likelihood(experiment.objective.likelihood)}",
    ]
    if examples.factors is not None:
        lines.append(f"factors: {_describe_factors(examples.factors, examples)}")
    if isinstance(examples, BinaryImages) and experiment.objective.likelihood != "bernoulli":
        lines.append(
            "note: these pictures are black and white, whose likelihood is objective.likelihood=bernoulli"
        )
    return lines


def _describe_factors(table: np.ndarray, examples: Dataset) -> str:
    """`shape (3 kinds), scale (6 values)`: so many are among these examples."""
    counts = [len(np.unique(column)) for column in table.T]
    kinds = ["kinds" if name in examples.unordered else "values" for name in examples.factor_names]
    words = zip(examples.factor_names, counts, kinds, strict=True)
    return ", ".join(f"{name} ({count} {kind})" for name, count, kind in words)


def _go(
    runs: Sequence[Run], machinery: TrainingSetup, how: RunOptions, again: str | None = None
) -> None:
    """Trains from wherever the folders stand to the end."""
    engine, home = machinery.engine, _home([run.folder for run in runs])
    session = Session(runs, engine, str(how.device))
    look = shell_command("report", home, *how.describe_data_root)
    for note in session.notes:
        print(f"controlvae: {note}", file=sys.stderr)
    if session.finished:
        with session:
            typer.echo(f"{home} is finished: step {session.steps:,}. See it with: {look}")
        return
    with session, _stop_signal() as stop:
        for line in machinery.words:
            print(f"controlvae: {line}", file=sys.stderr)
        name, text = machinery.kept
        for run in runs:
            write_text(run.folder.path / name, text)
        _watch(runs, machinery, how, stop.is_set)
    again = again or shell_command("resume", home, *how.describe_data_root)
    _print_final_status(runs, engine.step, session.steps, again, look, interrupted=stop.is_set())


def _watch(
    runs: Sequence[Run], machinery: TrainingSetup, how: RunOptions, stop: Callable[[], bool]
) -> None:
    """Trains under a bar, and for TensorBoard where that is asked for."""
    with (
        ExitStack() as open_files,
        training_bar([run.experiment for run in runs], machinery.engine.step) as show,
    ):
        sinks = [
            open_files.enter_context(closing(TensorBoard(run.folder)))
            for run in runs
            if how.tensorboard
        ]
        limits = {"time_limit": how.time_limit, "checkpoint_every": how.checkpoint_every}
        for glance in train(
            runs, machinery.engine, **limits, stop=stop, validator=machinery.validator
        ):
            show(glance)
            for sink, record in zip(sinks, glance.records, strict=False):
                if record is not None:
                    sink.write(record)


def _home(folders: Sequence[RunFolder]) -> Path:
    """The folder to name for these: the run itself, or the nearest that holds them all."""
    return Path(os.path.commonpath([folder.path for folder in folders]))


def _print_final_status(
    runs: Sequence[Run], step: int, steps: int, again: str, look: str, interrupted: bool
) -> None:
    """`again` goes on with them, `look` shows them."""
    for run in runs:
        if run.diverged_at is not None:
            print(f"controlvae: {training_loop.divergence(run)}", file=sys.stderr)
        elif run.watch.out_of_reach:
            print(
                f"controlvae: {run.folder.path}: the target stayed out of reach, β at its bound; "
                f"see the report",
                file=sys.stderr,
            )
        elif run.watch.collapsed:
            print(
                f"controlvae: {run.folder.path}: the code stayed collapsed; see the report",
                file=sys.stderr,
            )
    if step < steps:
        typer.echo(f"stopped at step {step:,} of {steps:,}; go on with: {again}")
        raise typer.Exit(130 if interrupted else 0)
    ended = f": {_ending(runs[0])}" if len(runs) == 1 else ""
    typer.echo(f"finished at step {step:,}{ended}; see it with: {look}")
    if interrupted:  # in the last steps; what a command has to do besides must not begin
        typer.echo(f"whatever else there was to do goes on with: {again}")
        raise typer.Exit(130)


def _ending(run: Run) -> str:
    """What the code carries by the last line of the log: `KL 4.08 nats (target 4.00), 12 of 16 latents used`.

    Behind a total correlation stands how often its critic is right, without which an estimate says little.
    """
    record, held = run.folder.last_record(), run.experiment.controlled_quantity
    assert record is not None
    latents = record["kl_per_latent"]
    aim = "" if record["target"] is None else f" (target {format_nats(record['target'])})"
    judged = (
        f", the critic right in {record['critic_accuracy']:.0%}"
        if "critic_accuracy" in record
        else ""
    )
    value = (
        f", {run.experiment.controlled_label} {format_nats(record[held])}"
        if held != "kl" and (aim or judged)
        else ""
    )
    return f"KL {record['kl']:.2f} nats{value}{aim}{judged}, {describe_used_latents(latents)} latents used"


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Ctrl-C or SIGTERM asks training to checkpoint and stop; a second one ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("\ncontrolvae: stopping after this step; again to leave at once", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _seconds(option: str, text: str) -> float:
    """`90s`, `9m`, `1.5h` or plain seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UserError(f"{option} takes 90s, 9m or 1.5h, got {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _claimed(path: Path) -> Path:
    """`runs/NAME`, or `runs/NAME-2` and so on where that is taken; made at once, so that nobody else takes it."""
    candidate, number = path, 1
    while True:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
        except OSError as error:
            raise UserError(f"cannot make the run folder {candidate}: {error.strerror}") from None
        else:
            return candidate
