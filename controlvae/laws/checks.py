"""Checks of the settings of a law. Error messages contain the value received."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

AntiWindup = Literal["conditional", "algorithm1", "freeze", "none"]
# "inverse" is for a quantity that grows with its weight, such as an entropy with its bonus.
Direction = Literal["direct", "inverse"]
Constraint = Literal["equal", "at_most", "at_least"]

# Larger measurements are skipped like NaN, so that sums of usable ones stay finite.
LARGEST_MEASUREMENT = 1e30
# Sum of micro-batches of which one is unusable. Their mean is unusable too, and it is finite.
UNUSABLE_SUM = 1e36
# With larger gains an integral of usable measurements could overflow.
LARGEST_GAIN = 1e30
# Larger bounds and initial weights could overflow in sums with the terms of a law.
LARGEST_WEIGHT = 1e100

_UNIT = "it is in the unit of the measurement (nats per example for a KL)"


def check_set_point(target: Any, *, allow_zero: bool = True) -> None:
    """Raise unless a target is a finite number, or a schedule of finite numbers.

    Args:
        target: Set point or schedule.
        allow_zero: Accept zero, and schedules that pass through it. A law that divides by the set
            point does not.
    """
    try:
        is_schedule = hasattr(target, "min_value")
        ends = (target.min_value(), target.max_value()) if is_schedule else (target, target)
        lowest, highest = (None if isinstance(end, str | bool) else float(end) for end in ends)
    except (TypeError, ValueError, RuntimeError):  # None, a list, a vector
        lowest = highest = None
    if lowest is None or highest is None:
        raise TypeError(
            "target must be a number, or a schedule such as "
            f"Linear(1.0, 18.0, steps=1000), got {target!r}"
        )
    if not -LARGEST_MEASUREMENT < lowest <= highest < LARGEST_MEASUREMENT:
        raise ValueError(
            f"target must be a finite number below {LARGEST_MEASUREMENT:g}, got {target}; {_UNIT}"
        )
    if not allow_zero and lowest <= 0 <= highest:
        raise ValueError(
            f"target must not be zero, got {target}: the law acts on the relative error; {_UNIT}"
        )


def check_gains(gains: Mapping[str, float]) -> None:
    """Raise unless all gains are zero or positive."""
    for name, gain in gains.items():
        if not (math.isfinite(gain) and gain >= 0):
            raise ValueError(
                f"{name} must be zero or positive, got {gain}; the law has the minus sign"
            )
        if gain >= LARGEST_GAIN:
            raise ValueError(f"{name} must be below {LARGEST_GAIN:g}, got {gain}")


def check_bounds(low: float, high: float, start: float | None) -> None:
    """Raise unless the bounds of β are in order and the initial weight lies between them.

    Args:
        low: Smallest weight, which must be finite.
        high: Largest weight.
        start: Initial weight, or None.
    """
    if not (abs(low) < LARGEST_WEIGHT and low <= high):
        raise ValueError(
            f"beta_min must be finite and at most beta_max, got beta_min={low}, beta_max={high}"
        )
    if start is not None and not (low <= start <= high and abs(start) < LARGEST_WEIGHT):
        raise ValueError(f"beta_init must be a finite number in [{low}, {high}], got {start}")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise unless a setting has one of the values of a `Literal` type.

    Args:
        name: Name of the setting.
        value: Value received.
        choices: The `Literal` type.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


def check_decay(name: str, value: float) -> None:
    """Raise unless the decay of a moving average lies in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(
            f"{name} must lie in [0, 1), got {value}; 0 is off, 0.9 averages about ten steps"
        )
