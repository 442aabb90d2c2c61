"""Base classes of the control laws: `Law`, `Schedule` and `Feedback`."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch

from controlvae.laws.backend import FLOATS, TENSORS, Backend, Value, widest_float
from controlvae.laws.states import IntegralState, ScheduleState

AntiWindup = Literal["conditional", "algorithm1", "freeze", "none"]

# Larger measurements are skipped like NaN, so that sums of usable ones stay finite.
LARGEST_MEASUREMENT = 1e30


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
            measured: Measurement in nats per example, of the same kind and shape as the state.
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
        return ScheduleState(step, xp.where(is_usable, measured, state.measured), self.at(step, xp))


Target = float | Schedule


class Measurement(NamedTuple):
    """Measurement as a feedback law uses it."""

    usable: Value  # false for NaN and infinity
    measured: Value  # after the moving average
    target: Value
    error: Value  # target - measured


class Feedback(Law):
    """Law that compares a measurement with its set point and keeps β in [beta_min, beta_max].

    Subclasses compute their terms. Measuring, anti-windup and clamping are the same for all laws
    and live here.
    """

    state_type: ClassVar[type[Any]] = IntegralState

    # Each law declares these as dataclass fields, in the order of its signature.
    target: Target
    beta_min: float
    beta_max: float
    beta_init: float | None
    anti_windup: AntiWindup
    ema: float

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
        """Return the averaged measurement and the error e(t) = v(t) - measured(t).

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
        return Measurement(usable, measured, target, target - measured)

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
        after = self.state_type(
            state.step + 1,
            state.measured_count + 1,
            state.target_fixed,
            now.target,
            now.measured,
            now.error,
            unclamped,
            xp.clip(unclamped, self.beta_min, self.beta_max),
            *terms,
        )
        return xp.choose(now.usable, after, self.state_type(state.step + 1, *state[1:]))

    def retarget(self, state: Any, target: Value, xp: Backend = TENSORS) -> Any:
        """Return the state with a fixed set point, without a jump in β.

        Args:
            state: State to change. It is not modified.
            target: New set point in nats per example.
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
        check_set_point(target, signed=self.controls_reconstruction)

    def check(self, **gains: float) -> None:
        """Raise if a setting cannot work. The message contains the value received."""
        self.convert_target()
        for name, gain in gains.items():
            if not (math.isfinite(gain) and gain >= 0):
                raise ValueError(
                    f"{name} must be zero or positive, got {gain}; the law has the minus sign"
                )
        low, high, start = self.beta_min, self.beta_max, self.beta_init
        if not (math.isfinite(low) and low <= high):
            raise ValueError(
                f"beta_min must be finite and at most beta_max, got beta_min={low}, beta_max={high}"
            )
        if start is not None and not (low <= start <= high and math.isfinite(start)):
            raise ValueError(f"beta_init must be a number in [{low}, {high}], got {start}")
        if self.anti_windup not in get_args(AntiWindup):
            modes = ", ".join(get_args(AntiWindup))
            raise ValueError(f"anti_windup must be one of {modes}, got {self.anti_windup!r}")
        if not 0 <= self.ema < 1:
            raise ValueError(
                f"ema must lie in [0, 1), got {self.ema}; 0 is off, 0.9 averages about ten steps"
            )


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


def check_set_point(target: Target, *, signed: bool = False, zero: bool = False) -> None:
    """Raise unless a target is a positive number of nats, or a schedule of positive numbers.

    Args:
        target: Set point or schedule.
        signed: Accept negative numbers; the log-likelihood of a density may be negative.
        zero: Accept zero.
    """
    try:
        ends = (
            (target.min_value(), target.max_value())
            if isinstance(target, Schedule)
            else (target, target)
        )
        lowest, highest = (None if isinstance(end, str | bool) else float(end) for end in ends)
    except (TypeError, ValueError, RuntimeError):  # None, a list, a vector
        lowest = highest = None
    if lowest is None or highest is None:
        raise TypeError(
            "target must be a number of nats, or a schedule such as "
            f"Linear(1.0, 18.0, steps=1000), got {target!r}"
        )
    floor = -LARGEST_MEASUREMENT if signed else 0
    if not ((lowest > floor or (zero and lowest == 0)) and highest < LARGEST_MEASUREMENT):
        expected = "a finite number" if signed else "zero or positive" if zero else "positive"
        expected += f" and below {LARGEST_MEASUREMENT:g}" if highest >= LARGEST_MEASUREMENT else ""
        raise ValueError(f"target must be {expected}, got {target}; it is in nats per example")
