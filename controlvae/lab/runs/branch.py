"""Branching: new runs that continue from another run's checkpoint with other settings."""

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from controlvae.errors import RunError, UserError
from controlvae.lab.config import Experiment, changed_fields, override
from controlvae.lab.config.digest import config_digest, numeric_config
from controlvae.lab.io import PART, clear_torn_folders
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder

# Settings that the weights depend on.
_FIXED_SETTINGS = ("data", "model", "objective.critic", "training.validation")
# Events of the parent that do not apply to a branch.
_PARENT_EVENTS = ("started", "saved", "stopped", "resumed", "finished", "diverged")
# Events that no longer apply if the branch has another law.
_LAW_EVENTS = ("target out of reach", "target in reach again", "target within noise")


@dataclass(frozen=True)
class BranchPoint:
    """Checkpoint and log of a run from which a branch continues."""

    run: RunFolder
    saved: checkpoint.Checkpoint
    log: bytes  # up to the checkpoint
    warnings: list[str]  # about corrupt checkpoints that were skipped


def branch_runs(
    parents: Sequence[RunFolder],
    source: Path,
    target: Path,
    assignments: list[str],
    command: str,
    note: Callable[[str], None] = lambda line: None,
) -> list[RunFolder]:
    """Create a branch below `target` for each run below `source`: all of them or none.

    Args:
        parents: Runs to branch.
        source: Common folder of the parents.
        target: Folder of the new runs.
        assignments: Overrides such as `control.target=20`.
        command: Shell command that repeats the branch.
        note: Receives warnings about corrupt checkpoints.

    Returns:
        The new run folders.

    Raises:
        UserError: If the settings do not fit the checkpoints, or a folder is not usable.
    """
    if source.resolve() in target.resolve().parents:
        raise UserError(f"{target} is inside {source}; choose a folder outside it")
    points = branch_points(parents)
    _check_same_step(parents, points, source)
    experiments = [override(parent.experiment(), assignments) for parent in parents]
    _check_seeds(parents, experiments, source)
    children = [RunFolder(target / parent.path.relative_to(source)) for parent in parents]
    for point, child, experiment in zip(points, children, experiments, strict=True):
        child.require_empty("choose another folder")
        check_branch(point, experiment)
        for line in point.warnings:
            note(f"{point.run.path}: {line}; using the previous checkpoint")
    # Everything is built next to the target and renamed at the end, so that a kill at any moment
    # leaves whole runs or none.
    clear_torn_folders(target)
    staging = target.absolute().parent / f"{PART}{uuid.uuid4().hex[:8]}-{target.name}"
    try:
        for point, child, experiment in zip(points, children, experiments, strict=True):
            staged = RunFolder(staging / child.path.relative_to(target))
            create_branch(point, staged, experiment, command, target)
        _move_into_place(staging, target, children)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return children


def _move_into_place(staging: Path, target: Path, children: Sequence[RunFolder]) -> None:
    """Rename complete run folders, all at once unless the target holds something else.

    Args:
        staging: Folder of the complete runs.
        target: Folder of the new runs.
        children: The new runs.
    """
    try:
        if not target.exists() or not any(target.iterdir()):
            staging.rename(target)  # also onto an empty folder
            return
        for child in children:
            child.path.parent.mkdir(parents=True, exist_ok=True)
            for torn in child.path.glob(f"{PART}*"):  # `require_empty` ignores them
                shutil.rmtree(torn) if torn.is_dir() else torn.unlink()
            (staging / child.path.relative_to(target)).rename(child.path)
    except OSError as error:
        raise RunError(f"cannot create {target}: {error.strerror}; choose another folder") from None


def branch_points(runs: Sequence[RunFolder]) -> list[BranchPoint]:
    """Return the newest common step with an intact checkpoint in every run.

    The runs may be in training.

    Raises:
        UserError: If there is no such step, or the files of a run contradict each other.
    """
    points = []
    loaded = checkpoint.load_together([run.checkpoints for run in runs])
    for run, (saved, warnings) in zip(runs, loaded, strict=True):
        if saved is None:
            raise UserError(f"{run.path} has no checkpoint to branch from yet")
        if not run.accepts(saved.numbers["experiment"]):
            raise UserError(
                f"the checkpoint in {run.path} was written with other settings than its "
                "experiment.json"
            )
        log = run.log_file.read_bytes() if run.log_file.is_file() else b""
        position = saved.numbers["log_position"]
        if len(log) < position:
            raise UserError(f"{run.log_file} is shorter than its checkpoint says; was it edited?")
        points.append(BranchPoint(run, saved, log[:position], warnings))
    return points


def check_branch(point: BranchPoint, experiment: Experiment) -> None:
    """Raise UserError if a checkpoint cannot continue with these settings."""
    before, step = point.run.experiment(), point.saved.step
    for path in changed_fields(before, experiment):
        if any(path == fixed or path.startswith(f"{fixed}.") for fixed in _FIXED_SETTINGS):
            fixed = f"{', '.join(_FIXED_SETTINGS[:-1])} and {_FIXED_SETTINGS[-1]}"
            raise UserError(f"a branch cannot change {path}: {fixed} stay those of its parent")
    for part in ("objective", "control"):
        old, new = (type(getattr(one, part)).__name__ for one in (before, experiment))
        if old != new:
            raise UserError(f"cannot branch from {old} to {new}: their states are incompatible")
    if experiment.training.steps <= step:
        raise UserError(
            f"the run is at step {step:,} already; set the last step with --set training.steps=..."
        )


def create_branch(
    point: BranchPoint, child: RunFolder, experiment: Experiment, command: str, target: Path
) -> None:
    """Write a run folder at the checkpoint of another run.

    Weights, optimiser and controller are those of the parent, and so is the log up to that step,
    even if the settings of the child would have given another one. An event records this.

    Args:
        point: Where the parent is.
        child: Folder of the new run, which is renamed when it is complete.
        experiment: Settings of the new run.
        command: Shell command that repeats the branch.
        target: Final folder, for messages.

    Raises:
        RunError: If the files cannot be written.
    """
    parent, step = point.run, point.saved.step
    try:
        child.path.mkdir(parents=True)
        child.log_file.write_bytes(point.log)
        child.events_file.write_text(_as_json_lines(_branch_events(point, experiment)))
        validations = [record for record in parent.validations() if record["step"] <= step]
        if validations:
            child.validation_file.write_text(_as_json_lines(validations))
        best, _ = checkpoint.load_latest(parent.best, at_most=step)
        if best is not None:
            checkpoint.save(child.best, best)
        checkpoint.save(child.checkpoints, _branch_checkpoint(point, experiment))
        child.write(experiment, command)
    except UserError as error:  # of a write
        raise RunError(f"{error}; free some space and try again") from None
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or "the disk is full"
        raise RunError(
            f"cannot create the run folder {target}: {reason}; free some space and try again"
        ) from None


def _check_same_step(
    parents: Sequence[RunFolder], points: Sequence[BranchPoint], source: Path
) -> None:
    """Raise UserError if the runs are at different steps.

    A kill between two checkpoints leaves the older one in every run, which is fine.
    """
    steps = [checkpoint.latest_intact_step(parent.checkpoints) or 0 for parent in parents]
    if points[0].saved.step < min(steps):
        listed = ", ".join(f"{step:,}" for step in sorted(set(steps)))
        raise UserError(f"the runs in {source} are at steps {listed}; branch them one by one")


def _check_seeds(
    parents: Sequence[RunFolder], experiments: Sequence[Experiment], source: Path
) -> None:
    """Raise UserError if several runs would get the same new seed."""
    seeds = [parent.experiment().training.seed for parent in parents]
    if len(parents) > 1 and [one.training.seed for one in experiments] != seeds:
        raise UserError(
            f"{source} holds {len(parents)} runs; branch one of them to change its seed"
        )


def _branch_checkpoint(point: BranchPoint, experiment: Experiment) -> checkpoint.Checkpoint:
    """Return the checkpoint for the new settings.

    A new target in the settings replaces one that was moved by hand.
    """
    saved, before = point.saved, point.run.experiment()
    tensors = dict(saved.tensors)
    numbers = {**saved.numbers, "experiment": config_digest(experiment)}
    if _has_new_target(before, experiment):
        # Checkpoints of version 0.1 use the second name.
        for name in {"control.target_fixed", "control.held"} & tensors.keys():
            tensors[name] = torch.zeros_like(tensors[name])
    if before.control != experiment.control:
        numbers |= dict.fromkeys(checkpoint.TARGET_COUNTERS, 0)
    return checkpoint.Checkpoint(saved.step, tensors, numbers)


def _has_new_target(before: Experiment, after: Experiment) -> bool:
    return any(path.startswith("control.target") for path in changed_fields(before, after))


def _branch_events(point: BranchPoint, experiment: Experiment) -> list[dict[str, Any]]:
    """Return the parent's events that still apply, and one about the branch."""
    parent, before, step = point.run, point.run.experiment(), point.saved.step
    dropped = [*_PARENT_EVENTS, *(_LAW_EVENTS if before.control != experiment.control else ())]
    dropped += ["target moved"] if _has_new_target(before, experiment) else []
    events = [
        event
        for event in parent.events()
        if event["event"] not in dropped and event.get("step", 0) <= step
    ]
    now = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    events += [
        {**now, "event": "checkpoint passed over", "detail": line} for line in point.warnings
    ]
    other = list(changed_fields(numeric_config(before), numeric_config(experiment)))
    branched = {"event": "branched", "step": step, "from": str(parent.path), "changed": other}
    return [*events, {**now, **branched}]


def _as_json_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
