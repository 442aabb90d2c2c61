"""Settings of self-repair."""

from dataclasses import dataclass
from typing import Any

from controlvae.errors import UserError

MAX_REPAIRS = 20
CHECKPOINTS_KEPT = 6  # while a run is watched; the last two once it has ended


@dataclass(frozen=True)
class Repair:
    """Self-repair of a run in training.

    Attributes:
        limit: Number of repairs of one run, after which it stops with an error.
        custom: Repair user-supplied models too, not only built-in ones.
    """

    limit: int = 3
    custom: bool = True

    def __post_init__(self) -> None:
        whole = isinstance(self.limit, int) and not isinstance(self.limit, bool)
        if not whole or not 1 <= self.limit <= MAX_REPAIRS:
            raise UserError(f"Repair(limit=...) takes 1 to {MAX_REPAIRS} repairs, got {self.limit}")


def parse_repair(value: Any) -> Repair | None:
    """Return the settings of self-repair, or None for none.

    Args:
        value: True, False, None or `Repair(...)`.

    Raises:
        UserError: If it is something else.
    """
    if value is None or value is False:
        return None
    if value is True:
        return Repair()
    if not isinstance(value, Repair):
        raise UserError(f"repair takes True, False or lab.Repair(limit=3), got {value!r}")
    return value


def check_repair(repair: Any, **others: Any) -> Repair | None:
    """Return the settings of self-repair.

    Args:
        repair: True, False or `Repair(...)`.
        **others: Arguments that it cannot be combined with.

    Raises:
        UserError: If one of them is given.
    """
    parsed = parse_repair(repair)
    for name, value in others.items():
        if parsed is not None and value not in (None, 1):
            raise UserError(
                f"repair and {name} cannot be combined: a run repairs itself in one process"
            )
    return parsed
