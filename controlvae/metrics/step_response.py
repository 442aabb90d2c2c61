"""Step response of a controlled quantity: settling time, overshoot and steady-state error."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlvae.metrics._validation import to_numpy


@dataclass(frozen=True)
class StepResponse:
    """Step response of a trace. Times are in units of `steps`, the rest are shares of |target|."""

    settling_time: float | None  # time from which the trace stays within the band; None if never
    overshoot: float  # largest distance past the set point
    steady_state_error: float  # mean of (trace - target) over the last tenth
    steady_state_spread: float  # standard deviation over the last tenth
    band: float


def step_response(
    trace: Any, target: Any, *, steps: Any = None, band: float = 0.02, start: float | None = None
) -> StepResponse:
    r"""Measure how a trace approaches its set point and stays there.

    .. math:: t_s = \min \{t : |y_\tau - r_\tau| \le 0.02 \, |r_\tau| \ \forall \tau \ge t\}

    The definitions are those of Åström & Murray, *Feedback Systems*, 2008, section 5.3.

    Args:
        trace: Measured values y in order, (n,).
        target: Set point r: a number, or one per value for a ramp.
        steps: Time of each value; default 1..n.
        band: Relative distance from the set point that counts as settled.
        start: Value before the trace; default the first value. Overshoot is on the other side of
            the set point.

    Returns:
        Settling time, overshoot, steady-state error and spread.

    >>> step_response([0.0, 5.0, 12.0, 10.1, 10.0, 10.0], target=10.0).settling_time
    4.0
    """
    values, goal = to_numpy(trace).astype(np.float64), to_numpy(target).astype(np.float64)
    default_times = np.arange(1, values.size + 1)
    times = to_numpy(default_times if steps is None else steps).astype(np.float64)
    _check_trace(values, goal, times, band)
    goal = np.broadcast_to(goal, values.shape)
    relative = (values - goal) / np.abs(goal)  # signed, as a share of the set point
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


def _check_trace(values: np.ndarray, goal: np.ndarray, times: np.ndarray, band: float) -> None:
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"trace must be a non-empty list of numbers, got shape {values.shape}")
    if times.shape != values.shape:
        raise ValueError(f"steps must have {len(values)} values like the trace, got {times.shape}")
    if goal.shape not in [(), values.shape]:
        raise ValueError(
            f"target must be a number or {len(values)} values like the trace, got {goal.shape}"
        )
    if not np.isfinite(values).all():
        raise ValueError("trace must be finite")
    if not (np.isfinite(goal).all() and (goal != 0).all()):
        raise ValueError("target must be finite and not zero: distances are shares of it")
    if not 0 < band < 1:
        raise ValueError(f"band must be in (0, 1), got {band}")


def _overshoot(relative: np.ndarray, start: float) -> float:
    """Return the largest distance past the set point, seen from the start."""
    direction = 1.0 if start <= 0 else -1.0
    return max(0.0, float((direction * relative).max()))
