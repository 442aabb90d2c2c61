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
    "measured_count": "step",  # of a schedule, which counted nothing
    "slow_average": "measured",
    "anchor": "integral",
    "useful_integral": "integral",
    "swing": -1.0,
    "gain": 1.0,
}
_OPTIONAL_FIELDS = {"last_measurement", "relative_variance", *AutoState._fields[12:]}
_COUNTS = {"step", "measured_count", "pending_count"}
_VARIANCES = {"relative_variance", "second_moment"}
_LARGEST_COUNT = 1e15  # a float64 counts in steps of one up to 9e15
# Far beyond what training reaches: bounds end at 1e100. The square of it is still a float.
_LARGEST_VALUE = 1e150
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
        ValueError: If fields are missing or unknown, a value is not a finite number, or the shape or
            the kind of law differs.
    """
    if not isinstance(saved, Mapping) or not all(isinstance(name, str) for name in saved):
        raise ValueError(f"saved must be the state_dict of a controller, got {saved!r:.80}")
    saved = {
        LEGACY_FIELDS.get(name, name): value
        for name, value in saved.items()
        if not name.startswith(MONITOR_PREFIX)
    }
    expected = torch.as_tensor(law_ids, device="cpu")
    if "law" in saved:
        received = read_values("law", saved["law"], tuple(expected.shape))
        received = torch.as_tensor(received, device="cpu").to(expected.dtype)
        if not torch.equal(received, expected):
            raise ValueError(
                f"saved must come from the same kind of law: expected identifier {law_ids}, "
                f"got {saved['law']}"
            )
    names = (*fields, *PENDING_FIELDS)
    optional = _OPTIONAL_FIELDS | (set() if "target" in fields else {"measured_count"})
    missing = set(names) - set(saved) - optional
    unknown = set(saved) - set(names) - _KNOWN_FIELDS
    if missing or unknown:
        raise ValueError(
            "saved must be the state_dict of a controller: "
            f"missing {sorted(missing)}, unknown {sorted(unknown)}"
        )
    values = {
        name: read_values(name, saved[name], shape, is_count=name in _COUNTS)
        for name in names
        if name in saved
    }
    return [values[name] if name in values else _first_value(values, name) for name in names]


def read_values(name: str, value: Any, shape: tuple[int, ...], *, is_count: bool = False) -> Any:
    """Return a saved value as a float, or as the tensor it is.

    Args:
        name: Name of the field, for error messages.
        value: Value that was saved.
        shape: Expected shape.
        is_count: The value must be a whole number, zero or more.

    Raises:
        ValueError: If the value is not a number, or a tensor of this shape, or is not finite, or is
            larger than a state can be.
    """
    value = _as_numbers(name, value, shape)
    numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().reshape(-1)
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(
            f"saved {name!r} must be finite, got {value!r:.80}: the state was damaged or comes "
            "from a training that had diverged; load an earlier one"
        )
    largest = _LARGEST_COUNT if is_count else _LARGEST_VALUE
    if bool((numbers.abs() > largest).any()):
        raise ValueError(f"saved {name!r} must not exceed {largest:g}, got {value!r:.80}")
    if name in _VARIANCES and bool((numbers < 0).any()):
        raise ValueError(f"saved {name!r} must not be negative, got {value!r:.80}")
    if is_count and bool(((numbers < 0) | (numbers != numbers.floor())).any()):
        raise ValueError(f"saved {name!r} must be a whole number, zero or more, got {value!r:.80}")
    return value


def _as_numbers(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Return a saved value as a float, or as a tensor of real numbers of the expected shape."""
    received = tuple(getattr(value, "shape", ()))
    if received != shape or isinstance(value, list | tuple):
        got = f"a {type(value).__name__}" if isinstance(value, list | tuple) else received
        raise ValueError(f"saved {name!r} must have shape {shape}, got {got}")
    if shape and not isinstance(value, Tensor):  # an array of NumPy
        try:
            value = torch.as_tensor(value)
        except TypeError:
            raise ValueError(f"saved {name!r} must hold numbers, got {value!r:.80}") from None
    if isinstance(value, Tensor):
        if value.is_meta or value.is_complex() or value.dtype == torch.bool:
            kind = "a meta tensor" if value.is_meta else str(value.dtype)
            raise ValueError(f"saved {name!r} must hold real numbers, got {kind}")
        return value
    if isinstance(value, str | bytes | bool | complex) or not hasattr(value, "__float__"):
        raise ValueError(f"saved {name!r} must be a number, got {value!r:.80}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"saved {name!r} must be a finite number, got {value!r:.80}") from None


def _first_value(values: Mapping[str, Any], name: str) -> Any:
    """Return the first value of a field that the saving version did not have."""
    first = _FIRST_VALUES.get(name, 0.0)
    return values[first] if isinstance(first, str) else 0 * values["beta"] + first
