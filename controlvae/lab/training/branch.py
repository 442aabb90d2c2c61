"""A run that goes on from another's checkpoint under settings of its own: one beginning, several ends."""

import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from controlvae.errors import RunError, UserError
from controlvae.lab.config import Experiment, changed_fields
from controlvae.lab.config.digest import config_digest, numeric_config
from controlvae.lab.io import PART
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.monitor import OF_THE_TARGET

_KEPT = (
    "data",
    "model",
    "objective.critic",
    "training.validation",
)  # what the weights were made for and have seen
_NOT_OF_THE_LOG = (
    "started",
    "saved",
    "stopped",
    "resumed",
    "finished",
    "diverged",
)  # events of the parent alone
_OF_ITS_CONTROL = ("target out of reach", "target in reach again", "target within noise")


@dataclass(frozen=True)
class Beginning:
    """Where a run stands: what a branch of it takes over."""

    run: RunFolder
    saved: checkpoint.Checkpoint
    log: bytes  # up to there
    notes: list[str]  # damaged checkpoints that were passed over


def beginnings(runs: Sequence[RunFolder]) -> list[Beginning]:
    """Where runs stand together: the newest step of which each has a good checkpoint. They may be in training."""
    found = []
    together = checkpoint.load_together([run.checkpoints for run in runs])
    for run, (saved, notes) in zip(runs, together, strict=True):
        if saved is None:
            raise UserError(f"{run.path} has no checkpoint yet to branch from")
        if saved.numbers["experiment"] != config_digest(run.experiment()):
            raise UserError(
                f"the checkpoint in {run.path} was written by other settings than its experiment.json"
            )
        log = run.log_file.read_bytes() if run.log_file.is_file() else b""
        if len(log) < saved.numbers["log_position"]:
            raise UserError(f"{run.log_file} is shorter than its checkpoint says; was it edited?")
        found.append(Beginning(run, saved, log[: saved.numbers["log_position"]], notes))
    return found


def must_fit(start: Beginning, experiment: Experiment) -> None:
    """Refuses settings that a checkpoint cannot go on under."""
    before, step = start.run.experiment(), start.saved.step
    for path in changed_fields(before, experiment):
        if any(path == kept or path.startswith(f"{kept}.") for kept in _KEPT):
            raise UserError(
                f"a branch keeps {', '.join(_KEPT[:-1])} and {_KEPT[-1]}; {path} cannot change"
            )
    for part in ("objective", "control"):
        old, new = (type(getattr(one, part)).__name__ for one in (before, experiment))
        if old != new:
            raise UserError(
                f"a branch keeps the kind of its {part}: {old} cannot become {new}, whose state is another"
            )
    if experiment.training.steps <= step:
        raise UserError(
            f"it stands at step {step:,} already; say how far to go with --set training.steps=..."
        )


def branch(start: Beginning, child: RunFolder, experiment: Experiment, command: str) -> None:
    """Makes a run folder that stands where another run does.

    Weights, optimiser and controller are the other's, and so is the log up to there, whatever the child's settings
    would have made of it; an event says so. It is a run once its settings are in it, which come last.
    """
    parent, step = start.run, start.saved.step
    made = RunFolder(child.path / f"{PART}{uuid.uuid4().hex[:8]}")
    try:
        made.path.mkdir(parents=True)
        made.log_file.write_bytes(start.log)
        made.events_file.write_text(_as_lines(_events(start, experiment)))
        if looks := [look for look in parent.validations() if look["step"] <= step]:
            made.validation_file.write_text(_as_lines(looks))
        best, _ = checkpoint.load(parent.best, at_most=step)
        if best is not None:
            checkpoint.save(made.best, best)
        checkpoint.save(made.checkpoints, _under(experiment, start))
        for inside in made.path.iterdir():
            inside.rename(child.path / inside.name)
        child.write(experiment, command)
    except (OSError, RunError) as error:
        why = getattr(error, "strerror", None) or "the disk takes no more"
        raise RunError(
            f"cannot make the run folder {child.path}: {why}; make room and branch again"
        ) from None
    finally:
        shutil.rmtree(made.path, ignore_errors=True)


def _under(experiment: Experiment, start: Beginning) -> checkpoint.Checkpoint:
    """The checkpoint as one of the new settings. Where they give a target, one that was moved by hand ends."""
    saved, before = start.saved, start.run.experiment()
    tensors, numbers = (
        dict(saved.tensors),
        {**saved.numbers, "experiment": config_digest(experiment)},
    )
    if _has_another_target(before, experiment):
        tensors["control.held"] = torch.zeros_like(tensors["control.held"])
    if before.control != experiment.control:
        numbers |= dict.fromkeys(OF_THE_TARGET, 0)  # whether it can be held is another question now
    return checkpoint.Checkpoint(saved.step, tensors, numbers)


def _has_another_target(before: Experiment, after: Experiment) -> bool:
    return any(path.startswith("control.target") for path in changed_fields(before, after))


def _events(start: Beginning, experiment: Experiment) -> list[dict[str, Any]]:
    """What happened to the parent up to a step and still holds, and that this run left it there."""
    parent, before, step = start.run, start.run.experiment(), start.saved.step
    gone = [*_NOT_OF_THE_LOG, *(_OF_ITS_CONTROL if before.control != experiment.control else ())]
    gone += ["target moved"] if _has_another_target(before, experiment) else []
    kept = [
        one for one in parent.events() if one["event"] not in gone and one.get("step", 0) <= step
    ]
    now = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    passed = [{**now, "event": "checkpoint passed over", "detail": line} for line in start.notes]
    other = list(changed_fields(numeric_config(before), numeric_config(experiment)))
    return [
        *kept,
        *passed,
        {**now, "event": "branched", "step": step, "from": str(parent.path), "changed": other},
    ]


def _as_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
