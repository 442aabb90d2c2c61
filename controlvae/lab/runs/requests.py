"""Set-point change requests for a run in training, passed through `request.json` in its folder."""

import json
from pathlib import Path

from controlvae.errors import UserError
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.io import write_text
from controlvae.lab.reading import parse_json, read_bytes, shorten
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws.base import Feedback

_MAX_BYTES = 1 << 16


def request_target(folder: RunFolder, target: object) -> None:
    """Request another set point. A run that is not in training applies it when it is resumed.

    Raises:
        UserError: If the run has ended, or its law cannot take this target.
    """
    if folder.has_ended():
        raise UserError(f"{folder.path} has ended, so its target cannot be moved; branch it first")
    try:
        parse_target(_format_request(target), folder.experiment())
    except ValueError as error:
        raise UserError(str(error)) from None
    write_request(folder, target)


def write_request(folder: RunFolder, target: object) -> None:
    """Write a request without checking it."""
    write_text(folder.request_file, _format_request(target))
    folder.old_request_file.unlink(missing_ok=True)


def pending_request(folder: RunFolder) -> str | None:
    """Return the text of the request that has not been applied yet, or None.

    Versions before 0.2 wrote `asked.json`, which is still read.
    """
    try:
        path = _request_path(folder)
        return read_bytes(path, _MAX_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None


def parse_target(text: str, experiment: Experiment) -> float:
    """Return the requested set point.

    Raises:
        ValueError: If the text is not a valid target of the experiment's law.
    """
    if not isinstance(experiment.control, Feedback):
        raise ValueError(f"{experiment.control} is open-loop: it has no target to move")
    if experiment.rates is not None:
        raise ValueError("a rate-conditioned model has many set points, and none to move")
    content = parse_json(text)
    target = content.get("target") if isinstance(content, dict) else None
    if not isinstance(target, int | float) or isinstance(target, bool):
        raise ValueError(f"a target is a number of nats, got {shorten(target)}")
    target = float(target)
    experiment.check_target(target)
    return target


def clear_request(folder: RunFolder, text: str) -> None:
    """Delete the request that was just applied, unless a newer one has replaced it."""
    if pending_request(folder) == text:
        _request_path(folder).unlink(missing_ok=True)


def _request_path(folder: RunFolder) -> Path:
    old = folder.old_request_file
    return old if old.is_file() and not folder.request_file.is_file() else folder.request_file


def _format_request(target: object) -> str:
    try:
        return json.dumps({"target": target}) + "\n"
    except (TypeError, ValueError):  # no number at all
        return json.dumps({"target": shorten(target)}) + "\n"
