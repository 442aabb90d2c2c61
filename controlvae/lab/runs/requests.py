"""Set-point change requests for a run in training, passed through `request.json` in its folder."""

import json
from pathlib import Path

from controlvae.errors import UserError
from controlvae.lab.config.experiment import Experiment
from controlvae.lab.io import write_text
from controlvae.lab.reading import parse_json, read_bytes, shorten
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.records import is_finite
from controlvae.lab.runs.steering import check_reach, known_reach
from controlvae.laws.base import Feedback, Schedule

_MAX_BYTES = 1 << 16


def request_target(folder: RunFolder, target: object) -> str | None:
    """Request another set point. A run that is not in training applies it when it is resumed.

    Returns:
        A note if the target lies outside the reach that is known so far, or None.

    Raises:
        UserError: If the run has ended, its law cannot take this target, or the target is far
            outside of what the run is known to reach.
    """
    if folder.has_ended():
        raise UserError(f"{folder.path} has ended, so its target cannot be moved; branch it first")
    try:
        experiment = folder.experiment()
        number = parse_target(_format_request(target), experiment)
        note = _check_reach(folder, experiment, number)
    except ValueError as error:
        raise UserError(str(error)) from None
    write_request(folder, target)
    return note


def _check_reach(folder: RunFolder, experiment: Experiment, target: float) -> str | None:
    """Return a note on a target outside the known reach. Raise ValueError if it is far outside."""
    controlled, last = experiment.controlled_quantity, folder.last_record() or {}
    reach = known_reach(folder.events(), controlled, last)
    assert isinstance(experiment.control, Feedback)
    planned = experiment.control.target
    highest = planned.max_value() if isinstance(planned, Schedule) else planned
    seen = (last.get(controlled), last.get("target"), highest)
    numbers = [float(value) for value in seen if value is not None and is_finite(value)]
    return check_reach(target, reach, numbers)


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
