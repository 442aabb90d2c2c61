"""Checkpoints that survive a crash at any moment: written beside, synced, renamed; the one before is kept.

safetensors for tensors and JSON for the rest, each under its digest. No pickle.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
from torch import Tensor

from controlvae.errors import RunError, UserError

_TENSORS, _STATE = "tensors.safetensors", "state.json"
_KEPT = 2  # checkpoints in a folder
_PASSED_OVER = "passed-over-"
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    safetensors.SafetensorError,
)  # what reading a damaged one raises

Found = TypeVar("Found")


@dataclass(frozen=True)
class Checkpoint:
    """A run at one step."""

    step: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint whole or not at all, then drops all but the last few."""
    payload = safetensors.torch.save(checkpoint.tensors)
    content = {"step": checkpoint.step, "tensors": _digest(payload), "numbers": checkpoint.numbers}
    text = json.dumps(content, sort_keys=True)
    state = json.dumps({"digest": _digest(text.encode()), "content": content}, sort_keys=True)
    final = folder / f"step-{checkpoint.step:010d}"
    beside = folder / f".part-{final.name}"
    try:
        for torn in folder.glob(".part-*"):  # by a crash in the middle of a write
            shutil.rmtree(torn, ignore_errors=True)
        beside.mkdir(parents=True)
        _write_synced(beside / _TENSORS, payload)
        _write_synced(beside / _STATE, state.encode())
        _sync_folder(beside)
        if final.exists():  # the same step again, after a resume
            shutil.rmtree(final)
        beside.rename(final)
        _sync_folder(folder)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        last = _steps(folder)
        kept = (
            f"the checkpoint of step {last[0]} is intact"
            if last
            else "there is no earlier checkpoint"
        )
        raise RunError(
            f"cannot write the checkpoint of step {checkpoint.step} in {folder}: {error.strerror}; {kept}, "
            f"make room and resume"
        ) from None
    for step in _steps(folder)[_KEPT:]:
        shutil.rmtree(folder / f"step-{step:010d}", ignore_errors=True)
    for step in _steps(folder, _PASSED_OVER):
        if step <= checkpoint.step:  # training has come past it again
            shutil.rmtree(folder / f"{_PASSED_OVER}step-{step:010d}", ignore_errors=True)
    return final


def load(folder: Path, at_most: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a line for each damaged one passed over. None where there is none.

    `at_most` leaves out later steps: models trained side by side go on from the step that all of them have.
    """
    return _newest(folder, _read, at_most)


def load_together(folders: Sequence[Path]) -> list[tuple[Checkpoint | None, list[str]]]:
    """Of each folder the checkpoint of the newest step of which all have a whole one, and lines as `load` has them."""
    passed: list[list[str]] = [[] for _ in folders]
    common: int | None = None
    while True:
        found = [load(folder, at_most=common) for folder in folders]
        for mine, (_, lines) in zip(passed, found, strict=True):
            mine += [line for line in lines if line not in mine]
        steps = {saved.step if saved else 0 for saved, _ in found}
        if len(steps) == 1:
            return [(saved, lines) for (saved, _), lines in zip(found, passed, strict=True)]
        if min(steps) == 0:
            raise UserError("these runs have no step in common: take them one by one")
        common = min(steps)  # killed between two models' checkpoints, of which each keeps two


def latest_intact_step(folder: Path) -> int | None:
    """The step of the checkpoint that `load` takes, whose tensors are not made."""
    found, _ = _newest(folder, _checked)
    return None if found is None else found[0]["step"]


def is_intact(folder: Path, step: int) -> bool:
    """Whether there is a checkpoint of this step, and no damage to it."""
    try:
        _checked(folder / f"step-{step:010d}", step)
    except _DAMAGE:
        return False
    return True


def quarantine(folder: Path, after: int) -> None:
    """Renames checkpoints later than a step, from which training goes on: damaged, or ahead of the models beside it."""
    for step in _steps(folder):
        if step > after:
            path = folder / f"step-{step:010d}"
            shutil.rmtree(folder / f"{_PASSED_OVER}{path.name}", ignore_errors=True)
            path.rename(folder / f"{_PASSED_OVER}{path.name}")


def latest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, unread."""
    steps = _steps(folder)
    return steps[0] if steps else None


def _newest(
    folder: Path, read: Callable[[Path, int], Found], at_most: int | None = None
) -> tuple[Found | None, list[str]]:
    passed: list[str] = []
    for step in _steps(folder):
        if at_most is not None and step > at_most:
            continue
        try:
            return read(folder / f"step-{step:010d}", step), passed
        except _DAMAGE as error:
            passed.append(f"the checkpoint of step {step} is damaged ({error})")
    if passed:
        raise UserError(f"no good checkpoint in {folder}: {'; '.join(passed)}")
    return None, []


def _read(path: Path, step: int) -> Checkpoint:
    content, payload = _checked(path, step)
    return Checkpoint(content["step"], safetensors.torch.load(payload), content["numbers"])


def _checked(path: Path, step: int) -> tuple[dict[str, Any], bytes]:
    """The numbers and the tensors of a checkpoint, which match their digests."""
    state = json.loads((path / _STATE).read_bytes())
    content = state["content"]
    if _digest(json.dumps(content, sort_keys=True).encode()) != state["digest"]:
        raise ValueError(f"{_STATE} does not match its digest")
    if content["step"] != step:
        raise ValueError(f"it is the one of step {content['step']}")
    payload = (path / _TENSORS).read_bytes()
    if _digest(payload) != content["tensors"]:
        raise ValueError(f"{_TENSORS} does not match its digest")
    return content, payload


def _steps(folder: Path, prefix: str = "") -> list[int]:
    """Steps of the checkpoints in a folder, newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise UserError(f"{folder} should be a folder of checkpoints and is a file") from None
    except OSError as error:
        raise UserError(f"cannot read the checkpoints in {folder}: {error.strerror}") from None
    found = (re.fullmatch(prefix + r"step-([0-9]{10,})", name) for name in names)
    return sorted((int(match[1]) for match in found if match), reverse=True)


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _write_synced(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """A rename is on the disk only once its folder is."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
