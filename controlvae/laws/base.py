"""Base classes of the control laws: `Law`, `Schedule` and `Feedback`."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from controlvae.laws.backend import FLOATS, TENSORS, Backend, Value, widest_float
from controlvae.laws.checks import (
    LARGEST_MEASUREMENT,
    AntiWindup,
    Constraint,
    Direction,
    check_bounds,
    check_choice,
    check_decay,
    check_gains,
    check_set_point,
)
from controlvae.laws.states import IntegralState, ScheduleState


class Law(ABC):
    """Rule that turns measurements of a loss term into its weight β.

    A law is a frozen dataclass of settings. Its state is a separate named tuple, and `update` is a
    pure function of both. `Controller` keeps the state in a training loop.
    """

    open_loop: ClassVar[bool] = False
    controls_reconstruction: ClassVar[bool] = False  # else the term that β multiplies

    @abstractmethod
    def initial_state(self) -> Any:
        """Return the state before the first update, in Python floats."""

    @abstractmethod
    def update(self, state: Any, measured: Value, xp: Backend = TENSORS) -> Any:
        """Return the state after one more measurement; its `beta` is the weight to use.

        Args:
            state: State before the measurement. It is not modified.
            measured: Measurement in the unit of the target (nats per example for a KL), of the
                same kind and shape as the state.
            xp: Operations for this kind of values.
        """

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest weight."""
        return -math.inf, math.inf

    def init(self, models: int | None = None, device: torch.device | str | None = None) -> Any:
        """Return the state before the first update as float64 tensors, 0-dim or `(models,)`.

        >>> Linear(0.0, 1.0, steps=10).init().beta
        tensor(0., dtype=torch.float64)
        """
        shape = () if models is None else (models,)
        dtype = torch.float64 if device is None else widest_float(torch.device(device))
        state = self.initial_state()
        return type(state)(
            *(torch.full(shape, value, dtype=dtype, device=device) for value in state)
        )


class Schedule(Law):
    """Value that depends on the step alone.

    As the target of a law it is a set-point ramp. As a law it is an open-loop weight, which ignores
    the measurements.
    """

    open_loop = True

    @abstractmethod
    def at(self, step: Value, xp: Backend) -> Value:
        """Return the value at a step. Step 0 is before training, step 1 the first update."""

    @abstractmethod
    def min_value(self) -> float:
        """Return the smallest value of the schedule."""

    @abstractmethod
    def max_value(self) -> float:
        """Return the largest value of the schedule."""

    def initial_state(self) -> ScheduleState:
        return ScheduleState(0.0, 0.0, float(self.at(0.0, FLOATS)))

    def update(self, state: ScheduleState, measured: Value, xp: Backend = TENSORS) -> ScheduleState:
        step = state.step + 1
        is_usable = abs(measured) < LARGEST_MEASUREMENT
        shown = xp.where(is_usable, measured, state.measured)
        return ScheduleState(step, shown, self.at(step, xp), state.measured_count + is_usable)


Target = float | Schedule


class Measurement(NamedTuple):
    """Measurement as a feedback law uses it."""

    usable: Value  # false for NaN and infinity
    measured: Value  # after the moving average
    target: Value
    error: Value  # sign * (target - measured): the weight must fall while it is positive


class Feedback(Law):
    """Law that compares a measurement with its set point and keeps β in [beta_min, beta_max].

    Subclasses compute their terms. Measuring, direction, anti-windup and clamping are the same for
    all laws and live here.

    A law with `direction="direct"` controls a quantity that falls as its weight rises, such as a
    KL. `direction="inverse"` is for a quantity that grows with its weight, such as an entropy with
    its bonus.

    A law with `constraint="equal"` holds the set point. With `"at_most"` or `"at_least"` the weight
    rests at one of its bounds while the constraint holds, and leaves the bound while it is
    violated. This is complementary slackness: the law itself is the same, and only the bound is
    particular.
    """

    state_type: ClassVar[type[Any]] = IntegralState

    # Each law declares these as dataclass fields, in the order of its signature.
    target: Target
    beta_min: float
    beta_max: float
    beta_init: float | None
    anti_windup: AntiWindup
    ema: float
    # A law of a user may leave these two out.
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    @classmethod
    def at_most(cls, target: Target, **settings: Any) -> Self:
        """Return the law for the constraint measured <= target.

        >>> LagrangeMultiplier.at_most(3.0).constraint
        'at_most'
        """
        return cls(target=target, constraint="at_most", **settings)  # type: ignore[call-arg]

    @classmethod
    def at_least(cls, target: Target, **settings: Any) -> Self:
        """Return the law for the constraint measured >= target.

        >>> LagrangeMultiplier.at_least(3.0, direction="inverse").resting_bound
        'beta_min'
        """
        return cls(target=target, constraint="at_least", **settings)  # type: ignore[call-arg]

    @property
    def sign(self) -> float:
        """1 if the measured quantity falls as its weight rises, -1 if it grows with it."""
        return 1.0 if self.direction == "direct" else -1.0

    @property
    def resting_bound(self) -> Literal["beta_min", "beta_max"] | None:
        """Bound at which β rests while a one-sided constraint holds. None for an equality."""
        if self.constraint == "equal":
            return None
        rests_low = (self.constraint == "at_most") == (self.direction == "direct")
        return "beta_min" if rests_low else "beta_max"

    def signed_error(self, target: Value, measured: Value) -> Value:
        """Return sign * (target - measured), which is positive while the weight must fall."""
        return target - measured if self.direction == "direct" else measured - target

    @property
    def bounds(self) -> tuple[float, float]:
        return self.beta_min, self.beta_max

    def initial_state(self) -> Any:
        # Algorithm 1 starts from I(0) = 0. An initial weight is put into the integral, where
        # feedback can remove it.
        beta = self.beta_min if self.beta_init is None else self.beta_init
        target = float(self.target_at(0.0, FLOATS))
        integral = beta - self.beta_min
        return self.state_type(0.0, 0.0, 0.0, target, 0.0, 0.0, beta, beta, integral)

    def target_at(self, step: Value, xp: Backend) -> Value:
        """Return the set point at a step."""
        return self.target.at(step, xp) if isinstance(self.target, Schedule) else self.target

    def decay(self, state: Any, xp: Backend) -> Value:
        """Return the weight of the past in the moving average of measurements."""
        return self.ema

    def sense(self, state: Any, measured: Value, xp: Backend) -> Measurement:
        """Return the averaged measurement and the signed error, ±(v(t) - measured(t)).

        Args:
            state: State before the measurement.
            measured: Measurement of this batch.
            xp: Operations for this kind of values.
        """
        usable = abs(measured) < LARGEST_MEASUREMENT  # false for NaN too
        if self.ema > 0:
            decay = self.decay(state, xp)
            average = decay * state.measured + (1 - decay) * measured
            measured = xp.where(state.measured_count > 0, average, measured)
        target = self.target_at(state.step + 1, xp)
        target = xp.where(state.target_fixed > 0, state.target, target)
        return Measurement(usable, measured, target, self.signed_error(target, measured))

    def combine(
        self,
        state: Any,
        now: Measurement,
        xp: Backend,
        integral: Value,
        proportional: Value = 0.0,
        derivative: Value = 0.0,
    ) -> tuple[Value, Value]:
        """Return β before clamping, and the integral after anti-windup.

        Lines 8 and 10 to 17 of Algorithm 1.

        Args:
            state: State before the measurement.
            now: Measurement of this batch.
            xp: Operations for this kind of values.
            integral: Integral term that includes the present error.
            proportional: Proportional term.
            derivative: Derivative term.
        """
        low, high = self.beta_min, self.beta_max
        if self.anti_windup == "algorithm1":
            # The printed test is on the clamped β(t-1). That is always in range after the first
            # step, where β(0) = 0.
            first = 0.0 if self.beta_init is None else self.beta_init
            if not low <= first <= high:
                integral = xp.where(state.step > 0, integral, state.integral)
        elif self.anti_windup == "freeze":
            was_in_bounds = (state.unclamped_beta >= low) & (state.unclamped_beta <= high)
            integral = xp.where(was_in_bounds, integral, state.integral)
        unclamped = low + proportional + integral + derivative
        if self.anti_windup == "conditional":
            # Integrate unless β is saturated and the error pushes it further out. The sum keeps the
            # rejected increment: it is out of bounds either way, and clamping gives the bound.
            outward = ((unclamped < low) & (now.error > 0)) | ((unclamped > high) & (now.error < 0))
            integral = xp.where(outward, state.integral, integral)
        return unclamped, integral

    def project(self, integral: Value, proportional: Value, xp: Backend) -> tuple[Value, Value]:
        """Return β before clamping, and the integral with which β lies within its bounds.

        Projection moves a weight that would leave its bounds onto the bound, and anti-windup by
        `combine` rejects the whole increment. In the velocity form of a PI law, projection is
        anti-windup already.

        Args:
            integral: Integral term that includes the present error.
            proportional: Proportional term.
            xp: Operations for this kind of values.
        """
        unclamped = self.beta_min + proportional + integral
        excess = unclamped - xp.clip(unclamped, self.beta_min, self.beta_max)
        return unclamped, integral - excess

    def commit(
        self, state: Any, now: Measurement, unclamped: Value, terms: tuple[Value, ...], xp: Backend
    ) -> Any:
        """Return the state after a measurement. An unusable one advances the step only.

        Args:
            state: State before the measurement.
            now: Measurement of this batch.
            unclamped: β before clamping.
            terms: Fields of the state after the eight common ones: the integral and further terms.
            xp: Operations for this kind of values.
        """
        # States hold target - measured in both directions, as logs and `stats` show it.
        error = now.error if self.direction == "direct" else now.target - now.measured
        after = self.state_type(
            state.step + 1,
            state.measured_count + 1,
            state.target_fixed,
            now.target,
            now.measured,
            error,
            unclamped,
            xp.clip(unclamped, self.beta_min, self.beta_max),
            *terms,
        )
        return xp.choose(now.usable, after, self.state_type(state.step + 1, *state[1:]))

    def retarget(self, state: Any, target: Value, xp: Backend = TENSORS) -> Any:
        """Return the state with a fixed set point, without a jump in β.

        Args:
            state: State to change. It is not modified.
            target: New set point in the unit of the measurement.
            xp: Operations for this kind of values.
        """
        error = xp.where(state.measured_count > 0, target - state.measured, state.error)
        return state._replace(target_fixed=state.target_fixed * 0 + 1, target=target, error=error)

    def convert_target(self) -> None:
        """Validate the set point and store a number as a Python float.

        A float32 number of NumPy or torch would determine the dtype of the state.
        """
        self.check_target(self.target)
        if not isinstance(self.target, Schedule):
            object.__setattr__(self, "target", float(self.target))

    def check_target(self, target: Target) -> None:
        """Raise if this law cannot control to the set point."""
        check_set_point(target)

    def check(self, **gains: float) -> None:
        """Raise if a setting cannot work. The message contains the value received."""
        self.convert_target()
        self.check_constraint()
        check_gains(gains)
        check_bounds(self.beta_min, self.beta_max, self.beta_init)
        check_choice("anti_windup", self.anti_windup, AntiWindup)
        check_decay("ema", self.ema)
        if self.constraint != "equal" and self.anti_windup != "conditional":
            raise ValueError(
                f"constraint={self.constraint!r} needs anti_windup='conditional', got "
                f"{self.anti_windup!r}: the integral would wind up while the weight rests"
            )

    def check_constraint(self) -> None:
        """Raise if direction or constraint is unknown, and make the resting bound finite.

        An infinite `beta_max` at which the weight would rest becomes `beta_init`, or 1 without it.
        """
        check_choice("direction", self.direction, Direction)
        check_choice("constraint", self.constraint, Constraint)
        if self.resting_bound == "beta_max" and math.isinf(self.beta_max):
            start = max(1.0, self.beta_min) if self.beta_init is None else self.beta_init
            object.__setattr__(self, "beta_max", start)


class ProportionalFeedback(Feedback):
    """Feedback law with a proportional term."""

    @abstractmethod
    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        """Return the proportional term.

        Args:
            target: Set point.
            measured: Measurement after the moving average.
            xp: Operations for this kind of values.
        """

    def retarget(self, state: Any, target: Value, xp: Backend = TENSORS) -> Any:
        moved = super().retarget(state, target, xp)
        was_measured = state.measured_count > 0
        term = self.proportional(target, state.measured, xp)
        # The integral takes over what the proportional term loses, so that β does not jump.
        integral = state.integral + state.proportional - term
        return moved._replace(
            proportional=xp.where(was_measured, term, state.proportional),
            integral=xp.where(was_measured, integral, state.integral),
        )
