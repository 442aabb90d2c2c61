"""What every law shares: its state, the reading of a measurement, and the limits on its output."""

import math
import warnings
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple, get_args

import torch

from controlvae.laws.backend import FLOATS, TENSORS, Backend, Value, widest_float

AntiWindup = Literal["conditional", "algorithm1", "freeze", "none"]

# A measurement this large is as good as infinite: it is skipped like NaN, and sums of what is not stay finite.
LARGEST_MEASUREMENT = 1e30


class TuningWarning(UserWarning):
    """A law was built outside the paper's tuning rules."""


class State(NamedTuple):
    """What moves while a law runs. All values are floats, or all are float64 tensors of one shape.

    float64 because a gain of 1e-4 times a small error falls below float32's spacing once the integral is near 100.
    """

    step: Value  # updates so far: the paper's t
    seen: Value  # measurements taken in; NaN and infinity are not
    held: Value  # 1 once set_target pinned the set point, else 0
    target: Value  # set point of the last update, v_kl(t)
    measured: Value  # the measurement after its moving average
    error: Value  # e(t) = target - measured
    p: Value  # proportional term
    i: Value  # integral term, gain included
    d: Value  # derivative term
    output: Value  # the weight asked for
    beta: Value  # the weight given: output within its bounds
    last: Value  # the measurement before its moving average; kept by laws that ask for it
    spread: Value  # the relative variance of measurements; likewise


class Law(ABC):
    """A rule that turns measurements into a weight. Settings stay still; `State` moves."""

    open_loop: ClassVar[bool] = False
    holds_reconstruction: ClassVar[bool] = False  # else what its weight multiplies

    @abstractmethod
    def initial(self) -> State:
        """The state before the first update, in Python floats."""

    @abstractmethod
    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        """The state after one more measurement; `.beta` of it is the weight to use. Pure."""

    @property
    def bounds(self) -> tuple[float, float]:
        """What its weight is limited to."""
        return -math.inf, math.inf

    def init(self, models: int | None = None, device: torch.device | str | None = None) -> State:
        """The state before the first update as float64 tensors, 0-dim or `(models,)`."""
        shape = () if models is None else (models,)
        dtype = torch.float64 if device is None else widest_float(torch.device(device))
        return State(
            *(torch.full(shape, value, dtype=dtype, device=device) for value in self.initial())
        )


class Schedule(Law):
    """A number that depends on the step alone.

    In the place of a target it is a set-point ramp. In the place of a law it is an open-loop weight,
    blind to what is measured.
    """

    open_loop = True

    @abstractmethod
    def at(self, step: Value, xp: Backend) -> Value:
        """The value at a step; step 0 is before training, step 1 the first update."""

    @abstractmethod
    def lowest(self) -> float:
        """The smallest value it takes."""

    @abstractmethod
    def highest(self) -> float:
        """The largest value it takes."""

    def initial(self) -> State:
        beta = float(self.at(0.0, FLOATS))
        return State(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, beta, beta, 0.0, 0.0)

    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        usable = abs(measured) < LARGEST_MEASUREMENT
        step = state.step + 1
        beta = self.at(step, xp)
        seen = xp.where(usable, state.seen + 1, state.seen)
        measured = xp.where(usable, measured, state.measured)
        # Written out, because the compiler of torch 2.11 does not know what `_replace` returns.
        return State(
            step,
            seen,
            state.held,
            state.target,
            measured,
            state.error,
            state.p,
            state.i,
            state.d,
            output=beta,
            beta=beta,
            last=state.last,
            spread=state.spread,
        )


Target = float | Schedule


class Measurement(NamedTuple):
    """A measurement as a law uses it."""

    usable: Value
    measured: Value
    target: Value
    error: Value


class Feedback(Law):
    """A law that compares a measurement with its set point and limits its output to [beta_min, beta_max].

    Subclasses give the terms; sensing, anti-windup and clamping are the same for all and live here.
    """

    # Each law declares these as its own fields, in the order of its own signature.
    target: Target
    beta_min: float
    beta_max: float
    beta_init: float | None
    anti_windup: AntiWindup
    ema: float

    @property
    def bounds(self) -> tuple[float, float]:
        return self.beta_min, self.beta_max

    def initial(self) -> State:
        # Algorithm 1 starts from I(0) = 0. A weight to start from is put into the integral, where it can be unlearnt.
        beta = self.beta_min if self.beta_init is None else self.beta_init
        target = float(self.target_at(0.0, FLOATS))
        return State(
            0.0, 0.0, 0.0, target, 0.0, 0.0, 0.0, beta - self.beta_min, 0.0, beta, beta, 0.0, 0.0
        )

    @abstractmethod
    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        """The term that depends on the present alone."""

    def target_at(self, step: Value, xp: Backend) -> Value:
        return self.target.at(step, xp) if isinstance(self.target, Schedule) else self.target

    def decay(self, state: State, xp: Backend) -> Value:
        """The share of the past in the moving average."""
        return self.ema

    def sense(self, state: State, measured: Value, xp: Backend) -> Measurement:
        """e(t) = v(t) - measured(t), with the moving average and NaN kept out."""
        usable = abs(measured) < LARGEST_MEASUREMENT  # false for NaN too
        if self.ema > 0:
            decay = self.decay(state, xp)
            averaged = decay * state.measured + (1 - decay) * measured
            measured = xp.where(state.seen > 0, averaged, measured)
        target = xp.where(state.held > 0, state.target, self.target_at(state.step + 1, xp))
        return Measurement(usable, measured, target, target - measured)

    def actuate(
        self, state: State, now: Measurement, p: Value, i: Value, d: Value, xp: Backend
    ) -> State:
        """Anti-windup, output and clamping: lines 8 and 10 to 19 of Algorithm 1."""
        low, high = self.beta_min, self.beta_max
        if self.anti_windup == "algorithm1":
            # The printed test is on the clamped beta(t-1), always in range after the first step, where beta(0) = 0.
            first = 0.0 if self.beta_init is None else self.beta_init
            if not low <= first <= high:
                i = xp.where(state.step > 0, i, state.i)
        elif self.anti_windup == "freeze":
            i = xp.where((state.output >= low) & (state.output <= high), i, state.i)
        output = low + p + i + d
        if self.anti_windup == "conditional":
            # Integrate unless saturated *and* the error pushes further out. The output keeps the refused increment:
            # the law asks for less than the bound, so the bound is what it gets.
            outward = ((output < low) & (now.error > 0)) | ((output > high) & (now.error < 0))
            i = xp.where(outward, state.i, i)
        return self.moved(state, now, p, i, d, output, xp)

    def moved(
        self,
        state: State,
        now: Measurement,
        p: Value,
        i: Value,
        d: Value,
        output: Value,
        xp: Backend,
    ) -> State:
        """The state after a measurement; where it was not usable only time has passed."""
        after = State(
            state.step + 1,
            state.seen + 1,
            state.held,
            now.target,
            now.measured,
            now.error,
            p,
            i,
            d,
            output,
            xp.clip(output, self.beta_min, self.beta_max),
            state.last,
            state.spread,
        )
        return xp.choose(now.usable, after, State(state.step + 1, *state[1:]))

    def retarget(self, state: State, target: Value, xp: Backend = TENSORS) -> State:
        """The state with its set point pinned at `target`, and the integral moved so that beta does not jump."""
        error = target - state.measured
        p = self.proportional(target, state.measured, xp)
        return state._replace(
            held=state.held * 0 + 1,
            target=target,
            error=xp.where(state.seen > 0, error, state.error),
            p=xp.where(state.seen > 0, p, state.p),
            i=xp.where(state.seen > 0, state.i + state.p - p, state.i),
        )

    def take_target(self) -> None:
        """Checks the set point and keeps it as Python's number: float32 of NumPy or torch would become the state's."""
        self.check_target(self.target)
        if not isinstance(self.target, Schedule):
            object.__setattr__(self, "target", float(self.target))

    def check_target(self, target: Target) -> None:
        """Refuses a set point that this law cannot hold."""
        check_target(target, signed=self.holds_reconstruction)

    def check(self, **gains: float) -> None:
        """Refuses settings that cannot work, with the value received."""
        self.take_target()
        for name, gain in gains.items():
            if not (math.isfinite(gain) and gain >= 0):
                raise ValueError(
                    f"{name} must be zero or positive, got {gain}; the law itself subtracts the error"
                )
        low, high, start = self.beta_min, self.beta_max, self.beta_init
        if not (math.isfinite(low) and low <= high):
            raise ValueError(
                f"beta_min must be finite and at most beta_max, got beta_min={low}, beta_max={high}"
            )
        if start is not None and not (low <= start <= high and math.isfinite(start)):
            raise ValueError(f"beta_init must be a number in [{low}, {high}], got {start}")
        if self.anti_windup not in get_args(AntiWindup):
            raise ValueError(
                f"anti_windup must be one of {', '.join(get_args(AntiWindup))}, got {self.anti_windup!r}"
            )
        if not 0 <= self.ema < 1:
            raise ValueError(
                f"ema must lie in [0, 1), got {self.ema}; 0 is off, 0.9 averages about ten steps"
            )


def check_target(target: Target, *, signed: bool = False, zero: bool = False) -> None:
    """A set point is a positive number of nats, or a ramp of them; `signed`, those of a density, may be negative."""
    try:
        ends = (
            (target.lowest(), target.highest())
            if isinstance(target, Schedule)
            else (target, target)
        )
        lowest, highest = (None if isinstance(end, str | bool) else float(end) for end in ends)
    except (TypeError, ValueError, RuntimeError):  # of None, a list, a vector
        lowest = highest = None
    if lowest is None or highest is None:
        raise TypeError(
            f"target must be a number of nats, or a ramp such as Linear(1.0, 18.0, steps=1000), got {target!r}"
        )
    above = -LARGEST_MEASUREMENT if signed else 0
    if not ((lowest > above or (zero and lowest == 0)) and highest < LARGEST_MEASUREMENT):
        wanted = "a finite number" if signed else "zero or positive" if zero else "positive"
        wanted += f" and below {LARGEST_MEASUREMENT:g}" if highest >= LARGEST_MEASUREMENT else ""
        raise ValueError(f"target must be {wanted}, got {target}; it is in nats per example")


def warn_outside(rule: str) -> None:
    warnings.warn(rule, TuningWarning, stacklevel=5)
