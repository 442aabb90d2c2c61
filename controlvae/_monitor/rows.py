"""Rows of a state block, and the values of a saved monitor."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from controlvae._monitor.state import MONITOR_FIELDS, BlockSums, initial_monitor, pack_values
from controlvae._saved_state import MONITOR_PREFIX, PENDING_FIELDS, read_values

_SUM_NAMES = tuple(MONITOR_PREFIX + name for name in BlockSums._fields)
_STATE_NAMES = tuple(MONITOR_PREFIX + name for name in MONITOR_FIELDS)
_COUNTS = {
    *(MONITOR_PREFIX + name for name in ("block_steps", "block_usable", "skipped", "blocks")),
    *(MONITOR_PREFIX + name for name in ("in_band", "since", "base_step", "ref_step")),
    *(MONITOR_PREFIX + name for name in ("mean_length", "mean_count", "part_count")),
}


class BlockRows(NamedTuple):
    """Rows of a state block: those of the law, of the monitor and of pending measurements."""

    law: slice  # fields of the laws
    sums: slice  # sums over the block of measurements that is being filled
    pending: slice  # sum and number of micro-batches since the last optimiser step
    monitor: slice  # state of the monitor
    names: tuple[str, ...]  # keys of a saved state, one per row

    @classmethod
    def arrange(cls, fields: Sequence[str], *, monitor: bool) -> "BlockRows":
        """Return the rows of laws with these fields, with or without a monitor."""
        sums, state = (_SUM_NAMES, _STATE_NAMES) if monitor else ((), ())
        parts = (tuple(fields), sums, PENDING_FIELDS, state)
        ends = accumulate(map(len, parts))
        law, first, pending, last = (
            slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)
        )
        return cls(law, first, pending, last, tuple(chain(*parts)))


def initial_monitor_values(law_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a monitor that begins to watch laws in the given state."""
    step, beta = law_values["step"], law_values["beta"]
    skipped = step - law_values["measured_count"] if "measured_count" in law_values else 0.0
    values = pack_values(initial_monitor(beta, step, skipped))
    return {**dict.fromkeys(_SUM_NAMES, 0.0 * beta), **dict(zip(_STATE_NAMES, values, strict=True))}


def read_saved_monitor(saved: Mapping[str, Any], law_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved values of a monitor.

    A state without a monitor, such as one of an earlier version, gives a new monitor.

    Args:
        saved: Dictionary returned by `Controller.state_dict`.
        law_values: Saved values of the law's fields.

    Raises:
        ValueError: If a value is not finite or has another shape.
    """
    names = (*_SUM_NAMES, *_STATE_NAMES)
    shape = tuple(getattr(law_values["beta"], "shape", ()))
    if all(name in saved for name in names):
        return {
            name: read_values(name, saved[name], shape, is_count=name in _COUNTS) for name in names
        }
    return initial_monitor_values(law_values)
