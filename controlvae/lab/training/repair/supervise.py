"""Supervision: runs that went wrong are taken back, changed in one setting, and resumed."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from torch import Tensor

from controlvae.errors import Diverged, RunError
from controlvae.lab.config import changed_fields
from controlvae.lab.engines.select import shared_settings
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import RunLogger
from controlvae.lab.runs.repairs import (
    KILLED,
    RepairRecord,
    read_repairs,
    settings_of,
    write_repairs,
)
from controlvae.lab.training.display import Display
from controlvae.lab.training.loop import Run
from controlvae.lab.training.repair.remedies import choose_remedy
from controlvae.lab.training.repair.settings import Repair
from controlvae.lab.training.repair.symptoms import Symptom
from controlvae.lab.training.repair.watch import Watch

T = TypeVar("T")


def train_repairing(
    runs: Sequence[Run],
    repair: Repair,
    wrong_units: tuple[float, str] | None,
    train: Callable[[], T],
    resume: Callable[[list[RunFolder]], None],
    display: Display,
) -> T | None:
    """Train runs to the end, and repair those that go wrong.

    Args:
        runs: Opened runs.
        repair: Settings of self-repair.
        wrong_units: Factor of a reconstruction that is a mean, and what it is.
        train: Trains the runs and unlocks their folders.
        resume: Trains runs from their checkpoints. It repairs them again if need be.
        display: Receives a line for each repair.

    Returns:
        What `train` returned, or None if every run had to be repaired.

    Raises:
        RunError: If every run went wrong and none could be repaired.
    """
    for run in runs:
        run.watch = Watch(run.experiment)
    result = None
    if wrong_units is not None:
        refuse_units(runs, *wrong_units)
    else:
        try:
            result = train()
        except Diverged:
            if all(run.symptom is None for run in runs):
                raise
    failures = repair_runs(runs, repair, resume, display.status)
    for run in runs:
        if run.folder.has_ended():
            checkpoint.thin_out(run.folder.checkpoints)
    if failures and len(failures) == len(runs):
        raise Diverged(failures[0]) if len(failures) == 1 else RunError("; ".join(failures))
    for line in failures:
        display.note(line)
    return result


def repair_runs(
    runs: Sequence[Run],
    repair: Repair,
    resume: Callable[[list[RunFolder]], None],
    note: Callable[[str], None],
) -> list[str]:
    """Repair the runs that went wrong and resume them, side by side where they still fit together.

    Args:
        runs: Runs of a training that has ended, with their folders unlocked.
        repair: Settings of self-repair.
        resume: Trains runs from their checkpoints. It repairs them again if need be.
        note: Receives a line for each repair.

    Returns:
        A line for each run that could not be repaired.
    """
    failures: list[str] = []
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        if run.symptom is None or run.diverged_at is None:
            continue
        record = make_record(run, run.symptom, run.diverged_at, repair)
        if isinstance(record, str):
            failures.append(record)
            continue
        apply_record(run.folder, record)
        count = sum(one.symptom != KILLED for one in run.folder.repairs())
        note(f"{run.folder.path}: repair {count} of at most {repair.limit}: {record}")
        key = f"{shared_settings(run.folder.experiment())} {record.step}"
        groups.setdefault(key, []).append(run.folder)
    for folders in groups.values():
        try:
            resume(folders)
        except Diverged as error:
            failures.append(str(error))
    return failures


def refuse_units(runs: Sequence[Run], factor: float, description: str) -> None:
    """Stop runs before their first step, because their reconstruction is in the wrong units.

    Args:
        runs: Opened runs, whose folders are unlocked.
        factor: Factor that puts the reconstruction into nats per example.
        description: What the reconstruction is.
    """
    for run in runs:
        step = checkpoint.latest_intact_step(run.folder.checkpoints) or 0
        run.symptom = Symptom("wrong units", step, f"it is {description}", factor=factor)
        run.diverged_at = step
        run.logger.event(
            "symptom", step=step, symptom=run.symptom.kind, evidence=run.symptom.evidence
        )
        run.logger.close()


def make_record(run: Run, symptom: Symptom, found_at: int, repair: Repair) -> RepairRecord | str:
    """Return the repair of a run, or a line that says why there is none.

    Args:
        run: The run.
        symptom: What went wrong.
        found_at: Step at which it was found.
        repair: Settings of self-repair.
    """
    earlier = [one for one in run.folder.repairs() if one.experiment is not None]
    remedy = choose_remedy(symptom, run.experiment)
    what = f"{run.folder.path}: {symptom.kind} at step {found_at:,} ({symptom.evidence})"
    if remedy is None:
        return f"{what}; there is no repair for it. The run stays at its last checkpoint"
    if len(earlier) >= repair.limit:
        times = "once" if len(earlier) == 1 else f"{len(earlier)} times"
        return (
            f"{what}; it was repaired {times} already, which is the limit. See what was tried in "
            f"{run.folder.path / 'repairs.json'}; branch the run with other settings"
        )
    since = symptom.since
    if earlier and earlier[-1].symptom == symptom.kind:
        # The same again: that checkpoint may be past the wrong turn.
        since = min(since, max(0, earlier[-1].step - 1))
    return RepairRecord(
        time=_now(),
        step=_last_good_step(run.folder, since),
        found_at=found_at,
        symptom=symptom.kind,
        evidence=symptom.evidence,
        remedy=remedy.text,
        changed=tuple(changed_fields(run.experiment, remedy.experiment)),
        experiment=settings_of(remedy.experiment),
    )


def apply_record(folder: RunFolder, record: RepairRecord) -> None:
    """Write a repair into a run folder. Resuming the run then takes it back.

    Args:
        folder: Run folder, which nobody trains.
        record: The repair.
    """
    logger = RunLogger(folder)
    try:
        logger.event(
            "repaired",
            step=record.step,
            found_at=record.found_at,
            symptom=record.symptom,
            evidence=record.evidence,
            remedy=record.remedy,
            changed=list(record.changed),
        )
        write_repairs(folder.path, [*read_repairs(folder.path), record])
    finally:
        logger.close()


def record_kill(folder: RunFolder, reason: str) -> None:
    """Record that a run is resumed after its process was killed.

    Args:
        folder: Run folder, which nobody trains.
        reason: What ended the process.
    """
    last, step = folder.last_record(), checkpoint.latest_intact_step(folder.checkpoints) or 0
    found_at = max(step, 0 if last is None else int(last["step"]))
    remedy = "resumed with the same settings"
    apply_record(folder, RepairRecord(_now(), step, found_at, KILLED, reason, remedy))


def last_good_tensors(folder: RunFolder) -> dict[str, Tensor] | None:
    """Return the tensors from which a repaired run resumes, or None if it starts again.

    Args:
        folder: Run folder, which may not exist yet.
    """
    changes = [one for one in folder.repairs() if one.experiment is not None]
    if not changes:
        return None
    saved, _ = checkpoint.load_latest(folder.checkpoints, at_most=changes[-1].step)
    return None if saved is None else saved.tensors


def _last_good_step(folder: RunFolder, since: int) -> int:
    """Return the step of the newest intact checkpoint that is not later than a step, or 0."""
    return next((step for step in checkpoint.intact_steps(folder.checkpoints) if step <= since), 0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
