"""A run that goes on from another's checkpoint under settings of its own: one beginning, several ends."""

import json
import shutil
from datetime import UTC, datetime
from typing import Any

import torch

from controlvae.errors import UserError
from controlvae.experiments import Experiment, RunFolder, changed
from controlvae.experiments.files import PART
from controlvae.training import checkpoint
from controlvae.training.loop import identity

_KEPT = ("data", "model", "training.validation")  # what the weights were made for and have seen
_NOT_OF_THE_PAST = ("name", "about", "paper", "training.steps", "training.validate_every")  # no number depends on them
_OF_A_PROCESS = ("started", "saved", "stopped", "resumed", "finished", "diverged")  # events that say nothing of the log


def branch(parent: RunFolder, child: RunFolder, experiment: Experiment, command: str) -> int:
    """Makes a run folder that stands where the parent's last good checkpoint does, and returns that step.

    Weights, optimiser and controller are the parent's, and so is the log up to there, whatever the child's settings
    would have made of it; an event says so. The parent may be in training.
    """
    child.must_be_free()
    saved, _ = checkpoint.load(parent.checkpoints)
    if saved is None:
        raise UserError(f"{parent.path} has no checkpoint yet to branch from")
    before = parent.experiment()
    if saved.numbers["experiment"] != identity(before):
        raise UserError(f"the checkpoint in {parent.path} was written by other settings than its experiment.json")
    _must_fit(before, experiment, saved.step)
    made = RunFolder(child.path.with_name(f"{PART}{child.path.name}"))
    shutil.rmtree(made.path, ignore_errors=True)  # by a crash in the middle of this
    try:
        made.path.mkdir(parents=True)
        made.log_file.write_bytes(parent.log_file.read_bytes()[: saved.numbers["log_position"]])
        looks = [look for look in parent.validations() if look["step"] <= saved.step]
        if looks:
            made.validation_file.write_text(_as_lines(looks))
        made.events_file.write_text(_as_lines(_events(parent, experiment, saved.step)))
        checkpoint.save(made.checkpoints, _own(saved, before, experiment))
        made.write(experiment, command)
        if child.path.exists():  # empty
            child.path.rmdir()
        made.path.rename(child.path)
    except OSError as error:
        shutil.rmtree(made.path, ignore_errors=True)
        raise UserError(f"cannot make the run folder {child.path}: {error.strerror}") from None
    return saved.step


def _must_fit(before: Experiment, after: Experiment, step: int) -> None:
    for path in changed(before, after):
        if any(path == kept or path.startswith(f"{kept}.") for kept in _KEPT):
            raise UserError(f"a branch keeps {', '.join(_KEPT[:-1])} and {_KEPT[-1]}; {path} cannot change")
    for part in ("objective", "control"):
        old, new = (type(getattr(one, part)).__name__ for one in (before, after))
        if old != new:
            raise UserError(f"a branch keeps the kind of its {part}: {old} cannot become {new}, whose state is another")
    if after.training.steps <= step:
        raise UserError(f"it stands at step {step:,} already; say how far to go with --set training.steps=...")


def _own(saved: checkpoint.Checkpoint, before: Experiment, after: Experiment) -> checkpoint.Checkpoint:
    """The checkpoint as one of the new settings. Where they say how to control, a target moved by hand ends."""
    tensors = dict(saved.tensors)
    if before.control != after.control:
        tensors["control.held"] = torch.zeros_like(tensors["control.held"])
    return checkpoint.Checkpoint(saved.step, tensors, {**saved.numbers, "experiment": identity(after)})


def _events(parent: RunFolder, experiment: Experiment, step: int) -> list[dict[str, Any]]:
    """What happened to the parent up to a step, and that this run left it there."""
    kept = [one for one in parent.events() if one["event"] not in _OF_A_PROCESS and one.get("step", 0) <= step]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    other = [path for path in changed(parent.experiment(), experiment) if path not in _NOT_OF_THE_PAST]
    return [*kept, {"time": now, "event": "branched", "step": step, "from": str(parent.path), "changed": other}]


def _as_lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
