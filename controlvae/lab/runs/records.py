"""Reading of the records in a run folder: lines of the log, events, and results as JSON."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.reading import parse_json, read_bytes, read_text

_MAX_LOG_BYTES = 4 << 30
# Numbers that every line of a log has. Later columns depend on the experiment.
LOG_COLUMNS = ("step", "kl", "beta", "reconstruction")
# Fields that readers of an event need: numbers, then texts, then lists of texts.
_EVENT_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "target moved": (("step", "target"), (), ()),
    "target out of reach": (("step", "target", "beta"), (), ()),
    "critic behind": (("step", "critic_accuracy", "least", "tc"), (), ()),
    "code collapsed": (("step", "kl"), (), ()),
    "diverged": (("step",), (), ()),
    "branched": (("step",), ("from",), ("changed",)),
    "repaired": (("step", "found_at"), ("symptom", "remedy"), ("changed",)),
}
_QUANTITIES = ("kl", "tc", "reconstruction")  # one of which an event about the reach names
# Numbers in any event, if they are there.
_EVENT_NUMBERS = ("step", "since", "bound", "threads", "seconds")


def is_number(value: Any) -> bool:
    """Return True for a number that is no boolean, NaN and infinity included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Return True for a finite number that is no boolean."""
    return is_number(value) and math.isfinite(value)


def parse_record(
    line: bytes, numbers: tuple[str, ...] = (), texts: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Parse a line of JSON, or return None if it lacks a required field.

    Args:
        line: One line of a log.
        numbers: Fields that must be numbers.
        texts: Fields that must be strings.
    """
    try:
        record = parse_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not all(is_number(record.get(name)) for name in numbers):
        return None
    return record if all(isinstance(record.get(name), str) for name in texts) else None


def is_log_record(record: Mapping[str, Any]) -> bool:
    """Return True if a line of a log holds numbers only, or None for what does not apply."""
    if any(isinstance(value, list) for name, value in record.items() if name != "kl_per_latent"):
        return False
    for name, value in record.items():
        items = value if isinstance(value, list) else [value]
        if not all(is_number(item) or (item is None and name not in LOG_COLUMNS) for item in items):
            return False
    is_vector = isinstance(record.get("kl_per_latent", []), list)
    is_step = is_finite(record["step"]) and record["step"] >= 0
    return is_vector and is_step and not isinstance(record.get("target"), list)


def with_columns(record: dict[str, Any]) -> dict[str, Any]:
    """Return a line of a log with every column that its readers need."""
    missing: dict[str, Any] = {"target": None, "saturated": 0.0, "kl_per_latent": []}
    return record | {name: value for name, value in missing.items() if name not in record}


def check_lengths(records: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log, or raise UserError if they differ in the number of latents."""
    for number, record in enumerate(records, start=1):
        if len(record["kl_per_latent"]) != len(records[0]["kl_per_latent"]):
            raise UserError(
                f"{path} line {number} has {len(record['kl_per_latent'])} latents, and the first "
                f"{len(records[0]['kl_per_latent'])}; was the file edited?"
            )
    return records


def is_event(event: Mapping[str, Any]) -> bool:
    """Return True if an event has the fields that its readers need, of the right types."""
    numbers, texts, lists = _EVENT_FIELDS.get(event["event"], ((), (), ()))
    present = tuple(name for name in _EVENT_NUMBERS if event.get(name) is not None)
    if not all(is_finite(event.get(name)) for name in (*numbers, *present)):
        return False
    if not all(isinstance(event.get(name), str) for name in texts):
        return False
    if event["event"] == "target out of reach":
        return any(is_finite(event.get(name)) for name in _QUANTITIES)
    return all(
        isinstance(event.get(name), list) and all(isinstance(item, str) for item in event[name])
        for name in lists
    )


def read_records(
    path: Path,
    is_valid: Callable[[Mapping[str, Any]], bool],
    numbers: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSON lines file. A torn last line is skipped.

    Args:
        path: The file, which may be missing.
        is_valid: Further test of a record.
        numbers: Fields that must be numbers.
        texts: Fields that must be strings.

    Raises:
        UserError: If any other line is invalid.
    """
    try:
        lines = read_bytes(path, _MAX_LOG_BYTES).splitlines(keepends=True) if path.exists() else []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        record = parse_record(line, numbers, texts)
        if record is None and number == len(lines) and not line.endswith(b"\n"):
            return
        if record is None or not is_valid(record):
            raise UserError(f"{path} line {number} is not a valid record; was the file edited?")
        yield record


def read_json_object(path: Path, advice: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        path: The file.
        advice: What to do if it is damaged.

    Raises:
        UserError: If the file cannot be read or holds something else.
    """
    try:
        content = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is corrupt ({error}); {advice}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is corrupt (it holds no object); {advice}")
    return content
