"""How a controlled quantity answered its set point: settling time, overshoot, steady-state error."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import host_array


@dataclass(frozen=True)
class StepResponse:
    """What a control engineer reads off a trace. Times in the units of `steps`; the rest as shares of |set point|."""

    settling_time: (
        float | None
    )  # from when on the trace stays within the band; None if it never does
    overshoot: float  # how far the trace went past its set point
    steady_state_error: float  # mean of (trace - target) over the last tenth
    steady_state_spread: float  # standard deviation over the last tenth
    band: float


def step_response(
    trace: Any, target: Any, *, steps: Any = None, band: float = 0.02, start: float | None = None
) -> StepResponse:
    """Describes how a trace approached its set point and stayed there.

    Args:
        trace: measured values in order, (n,).
        target: the set point, a number, or one per value for a ramp.
        steps: the time of each value; 1..n by default.
        band: the relative distance from the set point that counts as settled.
        start: where it stood before the first value; by default the first value. Past the set point is away from it.

    >>> step_response([0.0, 5.0, 12.0, 10.1, 10.0, 10.0], target=10.0).settling_time
    4.0
    """
    values, goal = host_array(trace).astype(np.float64), host_array(target).astype(np.float64)
    times = (
        np.arange(1, values.size + 1, dtype=np.float64)
        if steps is None
        else host_array(steps).astype(np.float64)
    )
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"trace must be a non-empty line of numbers, got shape {values.shape}")
    for name, given, shapes in (
        ("steps", times, [values.shape]),
        ("target", goal, [(), values.shape]),
    ):
        if given.shape not in shapes:
            raise ValueError(
                f"{name} must fit the trace of {len(values)} values, got shape {given.shape}"
            )
    if not (np.isfinite(values).all() and np.isfinite(goal).all() and (goal != 0).all()):
        raise ValueError(
            "trace must be finite, and its target too and not zero: distances are shares of it"
        )
    if not 0 < band < 1:
        raise ValueError(f"band must lie in (0, 1), got {band}")
    goal = np.broadcast_to(goal, values.shape)
    relative = (values - goal) / np.abs(
        goal
    )  # signed distance from the set point, as a share of its size
    outside = np.flatnonzero(np.abs(relative) > band)
    settled_from = 0 if len(outside) == 0 else int(outside[-1]) + 1
    tail = relative[-max(1, len(values) // 10) :]
    return StepResponse(
        settling_time=float(times[settled_from]) if settled_from < len(values) else None,
        overshoot=_overshoot(relative, relative[0] if start is None else start - goal[0]),
        steady_state_error=float(tail.mean()),
        steady_state_spread=float(tail.std()),
        band=band,
    )


def _overshoot(relative: np.ndarray, start: float) -> float:
    """The largest excursion beyond the set point on the far side from the start."""
    direction = 1.0 if start <= 0 else -1.0
    return max(0.0, float((direction * relative).max()))
