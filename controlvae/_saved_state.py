"""Reading of saved controller states, also of those that earlier versions wrote."""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from controlvae.laws.base import Law
from controlvae.laws.states import LEGACY_FIELDS, AutoState

PENDING_FIELDS = ("pending_sum", "pending_count")
MONITOR_PREFIX = "monitor_"  # of the fields of a monitor, which the law does not need
# Fields that states saved by early versions lack. A first value is a number or another field.
_FIRST_VALUES: dict[str, float | str] = {
    "slow_average": "measured",
    "anchor": "integral",
    "useful_integral": "integral",
    "swing": -1.0,
    "gain": 1.0,
}
_OPTIONAL_FIELDS = {"last_measurement", "relative_variance", *AutoState._fields[12:]}
_KNOWN_FIELDS = {*LEGACY_FIELDS.values(), *PENDING_FIELDS, "law"}


def identify_laws(laws: Sequence[Law]) -> list[float]:
    """Return a number for the class of each law. float32 represents it exactly."""
    return [float(crc32(type(law).__name__.encode()) % (1 << 24)) for law in laws]


def read_saved_state(
    saved: Mapping[str, Any],
    fields: Sequence[str],
    shape: tuple[int, ...],
    law_ids: float | Tensor,
) -> list[Any]:
    """Return the saved values of the fields and of the pending measurements.

    Fields of other laws, which earlier versions saved too, are ignored.

    Args:
        saved: Dictionary returned by `Controller.state_dict`.
        fields: Fields of the state to restore.
        shape: Expected shape of each value.
        law_ids: Expected identifiers of the laws.

    Raises:
        ValueError: If fields are missing or unknown, or the shape or the kind of law differs.
    """
    saved = {
        LEGACY_FIELDS.get(name, name): value
        for name, value in saved.items()
        if not name.startswith(MONITOR_PREFIX)
    }
    expected = torch.as_tensor(law_ids, device="cpu")
    received = torch.as_tensor(saved.get("law", expected), device="cpu").to(expected.dtype)
    if received.shape == expected.shape and not torch.equal(received, expected):
        raise ValueError(
            f"saved must come from the same kind of law: expected identifier {law_ids}, "
            f"got {saved['law']}"
        )
    names = (*fields, *PENDING_FIELDS)
    missing = set(names) - set(saved) - _OPTIONAL_FIELDS
    unknown = set(saved) - set(names) - _KNOWN_FIELDS
    if missing or unknown:
        raise ValueError(
            "saved must be the state_dict of a controller: "
            f"missing {sorted(missing)}, unknown {sorted(unknown)}"
        )
    values = [_read_field(saved, name) for name in names]
    for value in values:
        if (received_shape := tuple(getattr(value, "shape", ()))) != shape:
            raise ValueError(f"saved values must have shape {shape}, got {received_shape}")
    return values


def _read_field(saved: Mapping[str, Any], name: str) -> Any:
    """Return a saved value, or the first value of a field that the saving version did not have."""
    if name in saved:
        return saved[name]
    first = _FIRST_VALUES.get(name, 0.0)
    return saved[first] if isinstance(first, str) else 0 * saved["beta"] + first
