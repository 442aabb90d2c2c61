"""Checkpoints that survive a crash at any moment.

A checkpoint is written under a temporary name, synced and renamed, and the previous one is kept.
Tensors are in safetensors and the rest in JSON, each with its digest. No pickle is used.
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
from controlvae.lab.reading import (
    MAX_ARRAY_BYTES,
    MAX_JSON_BYTES,
    READ_ERRORS,
    parse_json,
    read_bytes,
    shorten,
)

# Counters of the training monitor that are reset when the target changes.
TARGET_COUNTERS = ("saturated_lines", "noisy_lines")

_NUMBER_TYPES: dict[str, Any] = {
    "experiment": str,
    "data": str,
    "log_position": int,
    "threads": int,
    **dict.fromkeys((*TARGET_COUNTERS, "collapsed_lines", "behind_lines"), int),
}

_TENSORS, _STATE = "tensors.safetensors", "state.json"
_CHECKPOINTS_KEPT = 2
_QUARANTINE_PREFIX = "passed-over-"
# Errors raised by reading a corrupt checkpoint.
_READ_ERRORS = (*READ_ERRORS, safetensors.SafetensorError)

T = TypeVar("T")


@dataclass(frozen=True)
class Checkpoint:
    """State of a run at one step."""

    step: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint, keep: int = _CHECKPOINTS_KEPT) -> Path:
    """Write a checkpoint atomically, then delete all but a few.

    Args:
        folder: Checkpoint directory.
        checkpoint: State to write.
        keep: Number of checkpoints to keep: the last two, and older ones at growing distances.

    Returns:
        The path of the checkpoint.

    Raises:
        RunError: If it cannot be written. Earlier checkpoints stay intact.
    """
    payload = safetensors.torch.save(checkpoint.tensors)
    content = {"step": checkpoint.step, "tensors": _digest(payload), "numbers": checkpoint.numbers}
    text = json.dumps(content, sort_keys=True)
    state = json.dumps({"digest": _digest(text.encode()), "content": content}, sort_keys=True)
    final = folder / f"step-{checkpoint.step:010d}"
    try:
        _write_atomically(final, payload, state.encode())
    except OSError as error:
        steps = _steps(folder)
        earlier = "there is no earlier checkpoint"
        if steps:
            earlier = f"the checkpoint of step {steps[0]} is intact"
        raise RunError(
            f"cannot write the checkpoint of step {checkpoint.step} in {folder}: "
            f"{error.strerror}; {earlier}; free some space and resume"
        ) from None
    thin_out(folder, keep)
    for step in _steps(folder, _QUARANTINE_PREFIX):
        if step <= checkpoint.step:  # training has passed it again
            shutil.rmtree(folder / f"{_QUARANTINE_PREFIX}step-{step:010d}", ignore_errors=True)
    return final


def thin_out(folder: Path, keep: int = _CHECKPOINTS_KEPT) -> None:
    """Delete all checkpoints but the last two and the oldest, and some between at growing distances.

    Args:
        folder: Checkpoint directory.
        keep: Number of checkpoints to keep, at least two.
    """
    steps = _steps(folder)
    for step in set(steps) - set(spread_steps(steps, keep)):
        shutil.rmtree(folder / f"step-{step:010d}", ignore_errors=True)


def spread_steps(steps: Sequence[int], keep: int) -> list[int]:
    """Choose which checkpoints to keep: the last two, and older ones whose ages grow by a factor.

    A wrong turn is found some time after it was taken, so an older checkpoint must be there.

    >>> spread_steps([80, 70, 60, 50, 40, 30, 20, 10], keep=5)
    [80, 70, 60, 50, 10]

    Args:
        steps: Steps of the checkpoints, newest first.
        keep: Number of checkpoints to keep, at least two.
    """
    kept = list(steps)
    if keep <= _CHECKPOINTS_KEPT:
        return kept[:keep]
    while len(kept) > keep:
        ages = [kept[0] - step + 1 for step in kept]
        # The checkpoint whose neighbours are nearest to each other, as a ratio of their ages.
        inner = range(_CHECKPOINTS_KEPT, len(kept) - 1)
        del kept[min(inner, key=lambda place: ages[place + 1] / ages[place - 1])]
    return kept


def intact_steps(folder: Path) -> list[int]:
    """Return the steps of all intact checkpoints, newest first."""
    return [step for step in _steps(folder) if is_intact(folder, step)]


def load_latest(folder: Path, at_most: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest intact checkpoint.

    Args:
        folder: Checkpoint directory.
        at_most: Largest step to consider.

    Returns:
        The checkpoint, or None if there is none, and a line for each corrupt one that was skipped.

    Raises:
        UserError: If there are checkpoints but none is intact.
    """
    return _newest(folder, _read, at_most)


def load_together(folders: Sequence[Path]) -> list[tuple[Checkpoint | None, list[str]]]:
    """Load the newest checkpoint step that is intact in every folder.

    Args:
        folders: Checkpoint directories of runs that train side by side.

    Returns:
        One (checkpoint, warnings) pair per folder, as `load_latest` returns it.
    """
    warnings: list[list[str]] = [[] for _ in folders]
    common: int | None = None
    while True:
        loaded = [load_latest(folder, at_most=common) for folder in folders]
        for collected, (_, lines) in zip(warnings, loaded, strict=True):
            collected += [line for line in lines if line not in collected]
        steps = {saved.step if saved else 0 for saved, _ in loaded}
        if len(steps) == 1:
            return [(saved, lines) for (saved, _), lines in zip(loaded, warnings, strict=True)]
        if min(steps) == 0:
            raise UserError("these runs have no step in common; resume them one by one")
        # A kill between two models' checkpoints leaves one ahead. Each model keeps two.
        common = min(steps)


def latest_intact_step(folder: Path) -> int | None:
    """Return the step that `load_latest` would load, without creating its tensors."""
    found, _ = _newest(folder, _read_verified)
    return None if found is None else found[0]["step"]


def is_intact(folder: Path, step: int) -> bool:
    """Return True if the checkpoint of this step exists and matches its digests."""
    try:
        _read_verified(folder / f"step-{step:010d}", step)
    except _READ_ERRORS:
        return False
    return True


def quarantine(folder: Path, after: int) -> None:
    """Rename checkpoints later than the step from which training resumes.

    They are corrupt, or ahead of the models that train alongside.
    """
    for step in _steps(folder):
        if step > after:
            path = folder / f"step-{step:010d}"
            shutil.rmtree(folder / f"{_QUARANTINE_PREFIX}{path.name}", ignore_errors=True)
            path.rename(folder / f"{_QUARANTINE_PREFIX}{path.name}")


def quarantine_replaced(folder: Path, after: int, digest: str) -> None:
    """Rename the later checkpoints that a repair has replaced.

    Args:
        folder: Checkpoint directory.
        after: Step that the run was taken back to.
        digest: Digest of the settings since the repair, whose checkpoints stay.
    """
    for step in _steps(folder):
        path = folder / f"step-{step:010d}"
        if step <= after:
            continue
        try:
            state = parse_json(read_bytes(path / _STATE, MAX_JSON_BYTES))
            is_replaced = state["content"]["numbers"]["experiment"] != digest
        except _READ_ERRORS:
            continue  # loading skips it, and says so
        if is_replaced:
            shutil.rmtree(folder / f"{_QUARANTINE_PREFIX}{path.name}", ignore_errors=True)
            path.rename(folder / f"{_QUARANTINE_PREFIX}{path.name}")


def latest_step(folder: Path) -> int | None:
    """Return the step of the newest checkpoint without reading it."""
    steps = _steps(folder)
    return steps[0] if steps else None


def _newest(
    folder: Path, read: Callable[[Path, int], T], at_most: int | None = None
) -> tuple[T | None, list[str]]:
    corrupt: list[str] = []
    for step in _steps(folder):
        if at_most is not None and step > at_most:
            continue
        try:
            return read(folder / f"step-{step:010d}", step), corrupt
        except _READ_ERRORS as error:
            corrupt.append(f"the checkpoint of step {step} is corrupt ({error})")
    if corrupt:
        raise UserError(f"no intact checkpoint in {folder}: {'; '.join(corrupt)}")
    return None, []


def _read(path: Path, step: int) -> Checkpoint:
    content, payload = _read_verified(path, step)
    return Checkpoint(content["step"], safetensors.torch.load(payload), content["numbers"])


def _read_verified(path: Path, step: int) -> tuple[dict[str, Any], bytes]:
    """Return numbers and tensors of a checkpoint after comparing them with their digests."""
    state = parse_json(read_bytes(path / _STATE, MAX_JSON_BYTES))
    content = state["content"]
    if _digest(json.dumps(content, sort_keys=True).encode()) != state["digest"]:
        raise ValueError(f"{_STATE} does not match its digest")
    if content["step"] != step:
        raise ValueError(f"it belongs to step {content['step']}")
    _check_numbers(content["numbers"])
    payload = read_bytes(path / _TENSORS, MAX_ARRAY_BYTES)
    if _digest(payload) != content["tensors"]:
        raise ValueError(f"{_TENSORS} does not match its digest")
    return content, payload


def _check_numbers(numbers: Any) -> None:
    """Raise ValueError if the numbers of a checkpoint have other types than training wrote."""
    if not isinstance(numbers, dict):
        raise ValueError(f"{_STATE} has no numbers")
    for name, kinds in _NUMBER_TYPES.items():
        value = numbers.get(name)
        is_valid = value is None or (isinstance(value, kinds) and not isinstance(value, bool))
        if not is_valid or (isinstance(value, int) and value < 0):
            raise ValueError(f"{_STATE} has {shorten(value)} as {name}")


def _steps(folder: Path, prefix: str = "") -> list[int]:
    """Return the steps of the checkpoints in a folder, newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise UserError(f"{folder} must be a folder of checkpoints, but is a file") from None
    except OSError as error:
        raise UserError(f"cannot read the checkpoints in {folder}: {error.strerror}") from None
    matches = (re.fullmatch(prefix + r"step-([0-9]{10,})", name) for name in names)
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _write_atomically(final: Path, payload: bytes, state: bytes) -> None:
    """Write a checkpoint folder under a temporary name, sync it and rename it."""
    folder, temporary = final.parent, final.parent / f".part-{final.name}"
    try:
        for torn in folder.glob(".part-*"):  # left by a crash in the middle of a write
            shutil.rmtree(torn, ignore_errors=True)
        temporary.mkdir(parents=True)
        _write_synced(temporary / _TENSORS, payload)
        _write_synced(temporary / _STATE, state)
        _sync_folder(temporary)
        if final.exists():  # the same step again, after a resume
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_folder(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_synced(path: Path, payload: bytes) -> None:
    with path.open("wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Sync a folder. A rename is on the disk only after this."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
