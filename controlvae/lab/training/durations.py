"""Durations that options take: seconds, or texts with a unit."""

import re
from collections.abc import Callable

from controlvae.errors import UserError

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(name: str, value: str | float, note: Callable[[str], None]) -> float:
    """Return a duration in seconds.

    Args:
        name: Name of the option, for messages.
        value: Seconds, or a text such as `90s`, `9m` or `1.5h`.
        note: Receives a message if a text has no unit.

    Raises:
        UserError: If the text is not a duration.
    """
    if isinstance(value, int | float) and value >= 0 and not isinstance(value, bool):
        return float(min(value, 1e300))  # a whole number may be larger than any float
    text = value.strip() if isinstance(value, str) else ""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise UserError(f"{name} takes a duration such as 90s, 9m or 1.5h, got {value!r}")
    if not match[2]:
        note(f"{name} {value} has no unit and is taken as seconds; write {match[1]}m for minutes")
    return float(match[1]) * _SECONDS[match[2] or "s"]
