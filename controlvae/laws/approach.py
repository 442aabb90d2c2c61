"""Approach of a measurement to its target: trend, progress, and wind-up of the integral.

`Auto` works on the log ratio r = log(target / measured). These functions tell whether r is on its
way to zero by itself, how fast the model can move at all, and how much of the integral has been
accumulated in vain.
"""

from typing import Any, NamedTuple

from controlvae.laws.backend import Backend, Value, larger, smaller
from controlvae.laws.base import Measurement
from controlvae.laws.states import AutoState

# Change of log β per unit of the log ratio.
KP = 2.5
# Relative error beyond which learning, and not β, limits how fast the quantity moves.
FAR_RELATIVE_ERROR = 0.25
# Largest relative error that the integral acts on.
MAX_INTEGRATED_ERROR = 0.5
TINY = 1e-30  # avoids a division by zero

# The integral time is this number divided by the highest speed seen, within bounds in steps.
_TRAVEL = 0.15
_MIN_INTEGRAL_TIME, _MAX_INTEGRAL_TIME = 14, 200
# It is at least this many times the number of averaged batches.
_TIME_PER_BATCH = 1.4
# Before any speed has been seen: this many steps, and one more for each step of the approach.
_BLIND_TIME = 100
# Integral time far from the target while the measurement comes no closer.
_IDLE_TIME = 40
# Steps of an approach after which a constant measurement counts as one that stands still.
_STILL_STEPS = 20
# The highest speed is forgotten over this many times the time it stands for.
_SPEED_MEMORY = 200
# Changes of the speed estimate: per step that stands still, and per crossing of the target.
_STALL_GAIN, _STALL_OFFSET, _CROSSING_GAIN = 1.004, 2e-6, 0.6
# An arrival within this many steps is awaited, and not forced by the integral.
_PATIENCE, _NEAR_PATIENCE = 60, 1
# Change of the log ratio that one unit of the integral causes in closed loop.
_OWN_TREND = 0.15
# Factor of the integral gain while the measurement moves away from the target.
_MAX_GATE = 2.0
# Standard errors by which a trend, and a speed, must exceed the noise.
_TREND_ERRORS, _SPEED_ERRORS = 1.2, 2.4
# Increase of the progress that shows that the last change of the integral had an effect.
_FASTER = 1.3
# Units of log β beyond the last useful integral at which the integral has slowed down by half:
# while the measurement moves, and while it stands still.
_MOVING_RANGE, _STILL_RANGE = 6.0, 7.0
# Excess beyond the first range is taken back in this many steps at the soonest.
_UNWINDING_TIME = 60
# Factor of all gains for each half period of an oscillation, and its least value.
_OSCILLATION_GAIN, _MIN_GAIN = 0.75, 0.15
# Steps after which the gains have recovered by an e-fold.
_RECOVERY_STEPS = 5_000
# Units of log β away from the last good level at which the way back is twice as fast.
_RETURN_RANGE = 8.0


class RatioReading(NamedTuple):
    """Measurement and trend as the law uses them."""

    now: Measurement
    ratio: Value  # log(target / measured) with the sign of the law, bounded
    error: Value  # relative error, within ±2
    noise: Value  # standard deviation of the averaged relative error
    trend: Value  # decrease of the ratio per step
    lag: Value  # steps between the two averages from which the trend comes
    slow: Value  # slow average
    bounded_trend: Value  # trend of the ratio within ±3, for the speed


class Approach(NamedTuple):
    """Way of the measurement to the target, since the target moved or was crossed."""

    side: Value  # sign of the error at the start
    steps: Value  # steps so far, this one included
    is_new: Value  # true on its first step
    is_crossing: Value  # true if the measurement has just crossed the target
    is_far: Value  # true beyond a relative error of 0.25
    is_outside: Value  # true if the error is larger than its noise and than 5 %
    progress: Value  # decrease of the log ratio per step towards zero, above its noise
    is_still: Value  # true if the measurement is far and does not move


def follow_approach(state: AutoState, reading: RatioReading, xp: Backend) -> Approach:
    """Return the approach after a measurement.

    Args:
        state: State before the measurement.
        reading: Measurement and trend.
        xp: Operations for this kind of values.
    """
    error, is_far = reading.error, abs(reading.error) > FAR_RELATIVE_ERROR
    side = xp.where(error > 0, 1.0, -1.0 + 0 * error)
    is_outside = abs(error) > larger(2 * reading.noise, 0.05, xp)
    is_other_side = (side != state.side) & is_outside
    side = xp.where(is_other_side, side, state.side)
    steps = xp.where(is_other_side, 0 * error, state.approach_steps) + 1
    margin = _TREND_ERRORS * reading.noise / reading.lag
    return Approach(
        side,
        steps,
        is_new=is_other_side | (steps <= 1),
        is_crossing=is_other_side & (state.side != 0),
        is_far=is_far,
        is_outside=is_outside,
        progress=larger(reading.trend * side - margin, 0.0, xp),
        is_still=is_far & (abs(reading.trend) <= margin) & (steps > _STILL_STEPS),
    )


def measure_speed(state: AutoState, reading: RatioReading, xp: Backend) -> Value:
    """Return the highest speed seen. Noise does not count, and old speeds are forgotten.

    Args:
        state: State before the measurement.
        reading: Measurement and trend.
        xp: Operations for this kind of values.
    """
    seen = abs(reading.bounded_trend) - _SPEED_ERRORS * reading.noise / reading.lag
    kept = state.speed * (1 - state.speed / (_SPEED_MEMORY * _TRAVEL))
    return xp.where(state.measured_count > 10, larger(seen, kept, xp), state.speed)


def integral_time(
    state: AutoState, approach: Approach, speed: Value, batches: Value, xp: Backend
) -> Value:
    """Return the integral time in steps.

    Args:
        state: State before the measurement.
        approach: Approach of the measurement.
        speed: Highest speed seen.
        batches: Number of averaged batches.
        xp: Operations for this kind of values.
    """
    time = xp.clip(_TRAVEL / (speed + 1e-9), _MIN_INTEGRAL_TIME, _MAX_INTEGRAL_TIME)
    time = smaller(time, _BLIND_TIME + approach.steps, xp)
    time = larger(time, _TIME_PER_BATCH * batches, xp)
    time = xp.where(approach.is_still, smaller(time, _IDLE_TIME + 0 * time, xp), time)
    # Without an answer of the model its speed is unknown, so the integral must not be fast.
    is_outbound = _is_idle(approach) & (_distance_back(state, approach, xp) == 0)
    return xp.where(is_outbound, larger(time, float(_IDLE_TIME), xp), time)


def integral_gate(reading: RatioReading, approach: Approach, time: Value, xp: Backend) -> Value:
    """Return the factor of the integral gain: 0 on the way, 1 at rest, up to 2 when moving away.

    Args:
        reading: Measurement and trend.
        approach: Approach of the measurement.
        time: Integral time.
        xp: Operations for this kind of values.
    """
    toward = reading.trend * approach.side
    # The integral at full pace also causes a trend, which is no reason to stop it.
    error = xp.clip(abs(reading.error), 0, MAX_INTEGRATED_ERROR)
    noise = _TREND_ERRORS * reading.noise / reading.lag
    noise = noise + xp.where(toward > 0, _OWN_TREND * KP * error / time, 0 * error)
    significant = larger(abs(toward) - noise, 0.0, xp)
    significant = xp.where(toward > 0, significant, -significant)
    far_patience = larger(2 * time, float(_PATIENCE), xp) + approach.steps
    patience = xp.where(approach.is_far, far_patience, _NEAR_PATIENCE * time)
    progress = patience * significant / larger(abs(reading.ratio), 0.02, xp)
    return xp.clip(1 - progress, 0, _MAX_GATE)


def adapt_speed(speed: Value, approach: Approach, gate: Value, time: Value, xp: Backend) -> Value:
    """Return the speed estimate, higher if the approach stalls and lower after a crossing.

    Args:
        speed: Highest speed seen.
        approach: Approach of the measurement.
        gate: Factor of the integral gain.
        time: Integral time.
        xp: Operations for this kind of values.
    """
    is_stalled = (gate > 0.7) & (approach.steps > time) & approach.is_outside
    speed = xp.where(is_stalled, speed * _STALL_GAIN + _STALL_OFFSET, speed)
    return xp.where(approach.is_crossing, speed * _CROSSING_GAIN, speed)


def damp_gain(state: AutoState, reading: RatioReading, approach: Approach, xp: Backend) -> Any:
    """Return the largest error since the last crossing, and the factor of all gains.

    A first crossing is an overshoot. A measurement that crosses the target again, after an error
    of 25 % or more on the other side, oscillates: the model responds with a delay, or more strongly
    than a VAE does.

    Args:
        state: State before the measurement.
        reading: Measurement and trend.
        approach: Approach of the measurement.
        xp: Operations for this kind of values.
    """
    size = abs(reading.error)
    has_crossed = (state.swing >= 0) & (approach.steps > 1)
    swing = xp.where(has_crossed, larger(state.swing, size, xp), state.swing)
    oscillates = approach.is_crossing & (state.swing > FAR_RELATIVE_ERROR)
    recovered = xp.clip(state.gain * (1 + 1 / _RECOVERY_STEPS), _MIN_GAIN, 1.0)
    damped = xp.clip(state.gain * _OSCILLATION_GAIN, _MIN_GAIN, 1.0)
    return xp.where(approach.is_crossing, size, swing), xp.where(oscillates, damped, recovered)


class Integral(NamedTuple):
    """Integral after a step, and what is known about its effect."""

    value: Value
    useful: Value  # its value when the approach last became faster
    best_progress: Value  # highest progress of the approach


def move_integral(state: AutoState, approach: Approach, step: Value, time: Value, xp: Any) -> Any:
    """Return the integral after a step, with protection against wind-up.

    Progress that no longer becomes faster shows that the model moves at its own pace, for example
    at the largest step of Adam. The integral then slows down, what was accumulated in vain is taken
    back, and most of the rest is dropped when the measurement crosses the target. On the way back
    to the last good level the integral is faster the further away it is.

    Args:
        state: State before the measurement.
        approach: Approach of the measurement.
        step: Change of the integral that gain and error ask for, with the opposite sign.
        time: Integral time.
        xp: Operations for this kind of values.
    """
    side, progress = approach.side, approach.progress
    is_faster = progress > _FASTER * state.best_progress
    best = xp.where(is_faster, progress, state.best_progress)
    best = xp.where(approach.is_new, 0 * best, best)

    excess = (state.useful_integral - state.integral) * state.side
    dropped = state.useful_integral - state.side * _MOVING_RANGE
    is_dropped = approach.is_crossing & (excess > _MOVING_RANGE)
    start = xp.where(is_dropped, dropped, state.integral)
    useful = xp.where(approach.is_new | is_faster, start, state.useful_integral)

    beyond_anchor = larger((state.anchor - start) * side, 0.0, xp)
    wound = smaller(larger((useful - start) * side, 0.0, xp), beyond_anchor, xp)
    width = xp.where(progress > 0, _MOVING_RANGE + 0 * wound, _STILL_RANGE + 0 * wound)
    return_gain = 1 + _distance_back(state, approach, xp) / _RETURN_RANGE
    step = xp.where(_is_idle(approach), step * return_gain, step)
    step = xp.where(step * side > 0, step / (1 + (wound / width) ** 2), step)

    is_on_its_way = approach.is_far & (progress > 0.5 * best) & (progress > 0)
    surplus = larger(wound - _MOVING_RANGE, 0.0, xp)
    unwound = surplus / larger(time, float(_UNWINDING_TIME), xp)
    unwound = xp.where(is_on_its_way, unwound, 0 * unwound)
    return Integral(start - step + side * unwound, useful, best)


def _is_idle(approach: Approach) -> Value:
    """Return True if the measurement is far from the target and comes no closer."""
    return approach.is_far & (approach.progress == 0)


def _distance_back(state: AutoState, approach: Approach, xp: Backend) -> Value:
    """Return how far the integral is from its last good level, if it moves towards it."""
    return larger((state.integral - state.anchor) * approach.side, 0.0, xp)


def relative_error(target: Value, measured: Value) -> Value:
    """Return 2 tanh(log(target / measured) / 2); ±2 if the signs differ."""
    return 2 * (target - measured) / (abs(target) + abs(measured) + TINY)
