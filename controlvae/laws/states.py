"""States of the control laws: one small named tuple for each family of laws.

A state holds Python floats, or tensors of one shape. Tensors are float64, because a gain of 1e-4
times a small error falls below the spacing of float32 once the integral is near 100.

The states of feedback laws share their first eight fields. Named tuples cannot inherit fields, so
each class lists them.
"""

from typing import Any, NamedTuple

from controlvae.laws.backend import Value


class ScheduleState(NamedTuple):
    """State of an open-loop schedule."""

    step: Value  # number of updates, the paper's t
    measured: Value  # last usable measurement, kept for logging only
    beta: Value  # weight of the last update
    measured_count: Value = 0.0  # number of usable measurements


class IntegralState(NamedTuple):
    """State of laws with integral action alone: `LagrangeMultiplier`, `Geco`, `AdaptiveKL`."""

    step: Value  # number of updates, the paper's t
    measured_count: Value  # number of usable measurements; NaN and infinity are not counted
    target_fixed: Value  # 1 once `set_target` has replaced the law's own target, else 0
    target: Value  # set point v(t) of the last update
    measured: Value  # measurement after the moving average
    error: Value  # e(t) = target - measured
    unclamped_beta: Value  # weight before it is clamped to its bounds
    beta: Value  # weight after clamping
    integral: Value  # integral term, gain included


class PIState(NamedTuple):
    """State of `PI`, `NuPI` and `IncrementalPI`, and of `Capacity`, whose integral is constant."""

    step: Value
    measured_count: Value
    target_fixed: Value
    target: Value
    measured: Value
    error: Value
    unclamped_beta: Value
    beta: Value
    integral: Value
    proportional: Value = 0.0  # proportional term


class PIDState(NamedTuple):
    """State of `PID`."""

    step: Value
    measured_count: Value
    target_fixed: Value
    target: Value
    measured: Value
    error: Value
    unclamped_beta: Value
    beta: Value
    integral: Value
    proportional: Value = 0.0
    derivative: Value = 0.0  # derivative term after its moving average


class AutoState(NamedTuple):
    """State of `Auto`, which also estimates noise, speed and the last good level of log β."""

    step: Value
    measured_count: Value
    target_fixed: Value
    target: Value
    measured: Value
    error: Value
    unclamped_beta: Value
    beta: Value
    integral: Value
    proportional: Value = 0.0
    last_measurement: Value = 0.0  # last usable measurement, before the moving average
    relative_variance: Value = 0.0  # variance of measurements divided by their squared mean
    slow_average: Value = 0.0  # average of measurements over at least 40 batches
    approach_steps: Value = 0.0  # steps since the error last changed its sign or the target moved
    near_steps: Value = 0.0  # steps since the error last was large
    side: Value = 0.0  # sign of the error of this approach, 0 before the first
    speed: Value = 0.0  # highest speed seen, as change of the log ratio per step
    anchor: Value = 0.0  # log β at which the target was last held
    anchor_target: Value = 0.0  # that target, 0 if none was held yet
    useful_integral: Value = 0.0  # integral at which the approach last became faster
    best_progress: Value = 0.0  # highest progress of the approach, as decrease of the log ratio
    swing: Value = -1.0  # largest error since the target was crossed, -1 if it was not yet
    gain: Value = 1.0  # factor of all gains, below 1 after an oscillation


class LogLagrangeState(NamedTuple):
    """State of `LogLagrange`, with the two moments of Adam."""

    step: Value
    measured_count: Value
    target_fixed: Value
    target: Value
    measured: Value
    error: Value
    unclamped_beta: Value
    beta: Value
    integral: Value
    first_moment: Value = 0.0  # moving average of the error
    second_moment: Value = 0.0  # moving average of the squared error


class Signals(NamedTuple):
    """Values of a controller that are worth logging. A term that the law does not have is zero."""

    target: Value
    measured: Value
    error: Value
    proportional: Value
    integral: Value
    unclamped_beta: Value
    beta: Value


def read_signals(state: Any) -> Signals:
    """Return the signals of any law's state.

    >>> read_signals(ScheduleState(step=3.0, measured=20.0, beta=0.5)).integral
    0.0
    """
    zero = 0 * state.beta
    return Signals(*(getattr(state, name, zero) for name in Signals._fields))


# Up to version 0.1 one tuple of these thirteen fields served every law. Saved states of that time
# are still loaded: old name -> new name, in the order of the old tuple.
LEGACY_FIELDS = {
    "step": "step",
    "seen": "measured_count",
    "held": "target_fixed",
    "target": "target",
    "measured": "measured",
    "error": "error",
    "p": "proportional",
    "i": "integral",
    "d": "derivative",
    "output": "unclamped_beta",
    "beta": "beta",
    "last": "last_measurement",
    "spread": "relative_variance",
}
