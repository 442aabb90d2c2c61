"""A law without gains to choose: PI control of log β by the logarithm of measured over target."""

import math
from dataclasses import dataclass
from typing import ClassVar

from controlvae.laws.approach import (
    FAR_RELATIVE_ERROR,
    KP,
    MAX_INTEGRATED_ERROR,
    TINY,
    RatioReading,
    adapt_speed,
    damp_gain,
    follow_approach,
    integral_gate,
    integral_time,
    measure_speed,
    move_integral,
    relative_error,
)
from controlvae.laws.backend import TENSORS, Backend, Value, larger, smaller
from controlvae.laws.base import Constraint, Direction, Measurement, ProportionalFeedback, Target
from controlvae.laws.checks import check_set_point
from controlvae.laws.log_domain import LogDomainFeedback
from controlvae.laws.states import AutoState

# Bounds of the log ratio in the proportional term. A weight that is too large can destroy a code
# that takes long to form again, so the term may raise β by little at first, and by one unit more
# for each 100 steps of an approach.
_MAX_RAISE, _MAX_LOWER, _RAISE_STEPS = 1.2, 3.5, 100
# Steps that the proportional term looks ahead along the measured trend.
_LOOK_AHEAD = 15
# Log ratio beyond which a speed says nothing about the response near the target.
_MAX_SPEED_RATIO = 3.0
# Log ratio from which the integral acts faster, and the largest increase.
_WRONG_UNIT_RATIO, _MAX_EXTRA = 2.0, 1.5
# Numbers of averaged batches: at least, far from the target, and near it.
_MIN_BATCHES, _MAX_FAR_BATCHES, _MAX_NEAR_BATCHES = 10, 50, 100
# Steps near the target for each averaged batch.
_NEAR_STEPS_PER_BATCH = 160
# Largest standard deviation of the proportional term, in units of log β.
_MAX_PROPORTIONAL_NOISE = 0.06
_VARIANCE_MEMORY = 100
# The slow average covers at least this many batches, or this share of the approach.
_MIN_SLOW_BATCHES, _SLOW_SHARE = 40, 0.25
# Decrease of the log ratio for one unit of log β: the feed-forward of a new set point.
_SLOPE = 0.8
# Change of log target that starts a new approach.
_NEW_APPROACH = 0.05
# The integral slows down this far, in units of log β, from where a target was last held.
_ANCHOR_RANGE = 20.0
# A resting one-sided law keeps its integral above this fraction of its initial weight.
_RESTING_FRACTION = 1e-3
_NEARLY_ONE = 1 - 1e-6


@dataclass(frozen=True)
class Auto(LogDomainFeedback, ProportionalFeedback):
    r"""PI control of log β that needs no gains, for any quantity, unit and model.

    .. math::  \log \beta(t) = I(t) - 2.5\, \left(r(t) - 15\, \dot r(t)\right),
               \qquad \dot I = -\frac{2.5}{T}\, g(t)\, \epsilon(t),
               \qquad r = \log \frac{v}{m}

    m is the measurement averaged over at least ten batches, v the set point, and ε the relative
    error 2 (v - m) / (|v| + |m|). In a linear VAE the KL falls by half a nat per latent in use for
    every e-fold of β, so its logarithm responds to log β with a slope of a few tenths, for all
    data, networks, units and batch sizes. Gains on logarithms carry over from one model to another,
    and gains on β do not.

    Models differ in speed, by a factor of a hundred. A VAE under Adam responds within twenty steps,
    the policy of a language model within hundreds. The integral time T is therefore measured: it is
    0.15 divided by the highest speed of r seen so far, between 14 and 200 steps.

    The gate g keeps the integral from winding up while the code of a model forms. It is 0 while the
    measurement will arrive at its present speed within the time that the approach has taken so far,
    1 while it stands still, and 2 while it moves away. Patience is counted for each approach and
    not from the start of training. An integral that does not make the approach faster slows down,
    and what it accumulated in vain is taken back. All gains fall while the measurement oscillates
    around the target, as it does under a long delay (see `approach.py`).

    A new set point moves log β at once, by the change of log v divided by 0.8. If the old set point
    was never reached, what the integral accumulated on the way is taken back first. There is no
    bound in absolute units.

    Use it for images, text, policies and custom models. Do not use it for disentangling, where the
    slow published gains are part of the method: see `PI.paper("disentangling")`.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
        reach_in: Constant horizon in steps, 200 or more, that replaces the measured speed: a plain
            PI law with an integral time of an eighth of it. Use it for a KL that should move
            slowly.
        beta_min: Smallest weight; 0 for none.
        beta_max: Largest weight.
        beta_init: Initial weight.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> law = Auto(target=18.0)
    >>> state = law.update(law.init(), torch.tensor(0.0))
    >>> state.beta.item() < 0.001  # the code is empty, so the weight falls at once
    True
    """

    target: Target
    reach_in: int | None = None
    beta_min: float = 0.0
    beta_max: float = float("inf")
    beta_init: float = 1.0
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    state_type = AutoState
    allows_zero_weight = True
    former_defaults: ClassVar[dict[str, object]] = {"beta_min": 1e-6}  # of version 0.1

    @property
    def ema(self) -> float:  # type: ignore[override]
        """Decay of the moving average at the first step; later ones are given by `decay`."""
        return 1 - 1 / _MIN_BATCHES if self.reach_in is None else 1 - 20 / self.reach_in

    def __post_init__(self) -> None:
        if self.reach_in is not None and not 200 <= self.reach_in < 1e9:
            raise ValueError(
                f"reach_in must be at least 200 steps and below 1e9, got {self.reach_in}"
            )
        self.check()

    def check_target(self, target: Target) -> None:
        check_set_point(target, allow_zero=False)

    def initial_state(self) -> AutoState:
        state: AutoState = super().initial_state()
        log_beta = math.log(self.beta_init)
        return state._replace(anchor=log_beta, useful_integral=log_beta)

    def update(self, state: AutoState, measured: Value, xp: Backend = TENSORS) -> AutoState:
        if self.reach_in is not None:
            return self._update_with_horizon(state, measured, xp)
        state = self._start_approach(state, self._next_target(state, xp), xp)
        reading = self._read(state, measured, xp)
        approach = follow_approach(state, reading, xp)
        speed = measure_speed(state, reading, xp)
        time = integral_time(state, approach, speed, self._averaged_batches(state, xp), xp)
        gate = integral_gate(reading, approach, time, xp)
        swing, gain = damp_gain(state, reading, approach, xp)
        step = gain**2 * KP / time * gate * self._integrated_error(state, reading, xp)
        integral = move_integral(state, approach, step, time, xp)
        p = gain * self._look_ahead(reading, approach.steps, xp)
        limited = self._limit_integral(integral.value, xp)
        unclamped, value = self.combine(state, reading.now, xp, limited, p)
        is_far, zero = approach.is_far, 0 * reading.error
        terms = (
            value,
            p,
            measured,
            self._variance(state, measured, reading.now, xp),
            reading.slow,
            approach.steps,
            xp.where(is_far, zero, state.near_steps + 1),
            approach.side,
            adapt_speed(speed, approach, gate, time, xp),
            xp.where(is_far, state.anchor, value),
            xp.where(is_far, state.anchor_target, reading.now.target + zero),
            integral.useful,
            integral.best_progress,
            swing,
            gain,
        )
        return self.commit(state, reading.now, unclamped, terms, xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        if self.reach_in is not None:
            return -2.0 * self.sign * relative_error(target, measured)
        ratio = self._log_ratio(target, measured, xp)
        return -KP * xp.clip(ratio, -_MAX_RAISE, _MAX_LOWER)

    def _look_ahead(self, reading: RatioReading, steps: Value, xp: Backend) -> Value:
        """Return the proportional term for the log ratio that the trend leads to."""
        ahead = xp.clip(reading.ratio - _LOOK_AHEAD * reading.trend, -_MAX_LOWER, _MAX_LOWER)
        highest = xp.clip(_MAX_RAISE + steps / _RAISE_STEPS, 0, _MAX_LOWER)
        return -KP * larger(ahead, -highest, xp)

    def decay(self, state: AutoState, xp: Backend) -> Value:
        if self.reach_in is not None:
            return self.ema + 0 * state.beta
        return 1 - 1 / smaller(self._averaged_batches(state, xp), state.measured_count + 1, xp)

    def retarget(self, state: AutoState, target: Value, xp: Backend = TENSORS) -> AutoState:
        """Return the state with a fixed set point. β moves at the next update.

        Args:
            state: State to change. It is not modified.
            target: New set point.
            xp: Operations for this kind of values.
        """
        if self.reach_in is not None:
            moved: AutoState = super().retarget(state, target, xp)
            return moved
        error = xp.where(state.measured_count > 0, target - state.measured, state.error)
        started = self._start_approach(state, target, xp)
        return started._replace(target_fixed=state.target_fixed * 0 + 1, target=target, error=error)

    def _next_target(self, state: AutoState, xp: Backend) -> Value:
        target = self.target_at(state.step + 1, xp)
        return xp.where(state.target_fixed > 0, state.target, target)

    def _start_approach(self, state: AutoState, target: Value, xp: Backend) -> AutoState:
        """Return the state with log β moved to where the new set point is expected."""
        change = self._log_change(target, state.target, xp)
        is_large = abs(change) > _NEW_APPROACH
        was_missed = abs(relative_error(state.target, state.measured)) > FAR_RELATIVE_ERROR
        from_anchor = state.anchor - self._log_change(target, state.anchor_target, xp) / _SLOPE
        moved = state.integral - change / _SLOPE
        moved = xp.where(is_large & was_missed, from_anchor, moved)
        integral = xp.where(state.measured_count > 0, moved, state.integral)
        zero = 0 * state.beta
        return state._replace(
            integral=integral,
            approach_steps=xp.where(is_large, zero, state.approach_steps),
            near_steps=xp.where(is_large, zero, state.near_steps),
            side=xp.where(is_large, zero, state.side),
            swing=xp.where(is_large, zero - 1, state.swing),
        )

    def _log_change(self, new: Value, old: Value, xp: Backend) -> Value:
        """Return the signed change of log |set point|, 0 if its sign changes."""
        quotient = new / xp.where(abs(old) > TINY, old, TINY + 0 * old)
        is_comparable = (quotient > 0) & (abs(old) > TINY)
        change = xp.log(xp.clip(xp.where(is_comparable, quotient, 1 + 0 * quotient), 1e-3, 1e3))
        return self.sign * xp.where(new > 0, change, -change)

    def _log_ratio(self, target: Value, measured: Value, xp: Backend) -> Value:
        """Return log(target / measured) with the law's sign; ±3.5 for values of opposite signs."""
        share = (target - measured) / (abs(target) + abs(measured) + TINY)
        share = xp.clip(share, -_NEARLY_ONE, _NEARLY_ONE)
        ratio = xp.log((1 + share) / (1 - share))
        bounded = xp.clip(ratio, -_MAX_LOWER, _MAX_LOWER)
        return self.sign * xp.where(target * measured > 0, ratio, bounded)

    def _read(self, state: AutoState, measured: Value, xp: Backend) -> RatioReading:
        now = self.sense(state, measured, xp)
        batches = self._averaged_batches(state, xp)
        fast = smaller(batches, state.measured_count + 1, xp)
        long = larger(
            larger(4 * batches, _MIN_SLOW_BATCHES, xp), _SLOW_SHARE * state.approach_steps, xp
        )
        long = smaller(long, state.measured_count + 1, xp)
        last = xp.where(state.slow_average == 0, now.measured, state.slow_average)
        slow = last + (measured - last) / long
        lag = larger(long - fast, 1.0, xp)
        ratio = self._log_ratio(now.target, now.measured, xp)
        slow_ratio = self._log_ratio(now.target, slow, xp)
        limit = _MAX_SPEED_RATIO
        bounded = xp.clip(slow_ratio, -limit, limit) - xp.clip(ratio, -limit, limit)
        error = self.sign * relative_error(now.target, now.measured)
        noise = (state.relative_variance / (2 * batches)) ** 0.5
        trend = (slow_ratio - ratio) / lag
        return RatioReading(now, ratio, error, noise, trend, lag, slow, bounded / lag)

    def _averaged_batches(self, state: AutoState, xp: Backend) -> Value:
        """Return over how many batches the measurement is averaged."""
        # A moving average over n batches has 1 / 2n of their variance.
        needed = KP**2 * state.relative_variance / (2 * _MAX_PROPORTIONAL_NOISE**2)
        long = larger(needed, state.near_steps / _NEAR_STEPS_PER_BATCH, xp)
        near = xp.clip(long, _MIN_BATCHES, _MAX_NEAR_BATCHES)
        far = xp.clip(needed, _MIN_BATCHES, _MAX_FAR_BATCHES)
        return xp.where(state.near_steps > 0, near, far)

    def _integrated_error(self, state: AutoState, reading: RatioReading, xp: Backend) -> Value:
        limit = MAX_INTEGRATED_ERROR
        error = xp.clip(reading.error, -limit, limit)
        # A ratio beyond e² tells that the unit of the weight is wrong by orders of magnitude.
        extra = xp.clip(abs(reading.ratio) - _WRONG_UNIT_RATIO, 0, _MAX_EXTRA)
        is_same_sign = reading.now.target * reading.now.measured > 0
        error = error * (1 + xp.where(is_same_sign, extra, 0 * extra))
        distance = (state.integral - state.anchor) / _ANCHOR_RANGE
        return error / (
            1 + xp.where(abs(reading.error) > FAR_RELATIVE_ERROR, distance**2, 0 * distance)
        )

    def _limit_integral(self, integral: Value, xp: Backend) -> Value:
        """Return the integral within reach of a one-sided law that rests at a far bound."""
        if self.resting_bound == "beta_min":
            low = math.log(max(self.beta_min, _RESTING_FRACTION * self.beta_init))
            return xp.clip(integral, low, math.inf)
        return integral

    def _variance(self, state: AutoState, measured: Value, now: Measurement, xp: Backend) -> Value:
        """Return the running estimate of the relative variance of measurements."""
        scale = abs(now.target) + abs(now.measured) + TINY
        difference = 2 * (measured - state.last_measurement) / scale
        # Half the squared difference of neighbours is a variance to which drift adds nothing.
        square = xp.clip(difference * difference / 2, 0, 1)
        memory = xp.clip(state.measured_count + 1, 1, _VARIANCE_MEMORY)
        estimate = state.relative_variance + (square - state.relative_variance) / memory
        return xp.where(state.measured_count > 0, estimate, state.relative_variance)

    def _update_with_horizon(self, state: AutoState, measured: Value, xp: Backend) -> AutoState:
        """Return the state after a plain PI update with the constant horizon `reach_in`."""
        assert self.reach_in is not None
        now = self.sense(state, measured, xp)
        error = self.sign * relative_error(now.target, now.measured)
        p = self.proportional(now.target, now.measured, xp)
        integral = state.integral - 16 / self.reach_in * error
        unclamped, i = self.combine(state, now, xp, integral, p)
        return self.commit(state, now, unclamped, (i, p, *state[10:]), xp)
