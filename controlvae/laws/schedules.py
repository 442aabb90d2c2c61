"""Schedules: set-point ramps and open-loop weights, which depend on the step alone."""

import math
from dataclasses import dataclass
from itertools import pairwise

from controlvae.laws.backend import Backend, Value
from controlvae.laws.base import Schedule
from controlvae.laws.checks import LARGEST_WEIGHT

_MAX_POINTS = 200


def _check_finite(**values: float) -> None:
    for name, value in values.items():
        if not abs(value) < LARGEST_WEIGHT:  # a difference of two larger values may overflow
            raise ValueError(
                f"{name} must be a finite number below {LARGEST_WEIGHT:g}, got {value}"
            )


def _check_steps(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 1):
            raise ValueError(f"{name} must be at least one step, got {value}")


class _Interpolation(Schedule):
    """Schedule that stays between its `start` and its `stop`."""

    start: float
    stop: float

    def min_value(self) -> float:
        return min(self.start, self.stop)

    def max_value(self) -> float:
        return max(self.start, self.stop)


@dataclass(frozen=True)
class Constant(Schedule):
    r"""Constant value: the plain VAE at 1, the β-VAE above 1.

    .. math::  \beta(t) = \mathrm{value}

    Kingma & Welling, *Auto-Encoding Variational Bayes*, 2014; Higgins et al., *β-VAE*, 2017.

    Args:
        value: The value at every step.

    >>> Controller(Constant(4.0)).step(20.0)
    4.0
    """

    value: float

    def __post_init__(self) -> None:
        _check_finite(value=self.value)

    def at(self, step: Value, xp: Backend) -> Value:
        return 0 * step + self.value

    def min_value(self) -> float:
        return self.value

    max_value = min_value


@dataclass(frozen=True)
class Linear(_Interpolation):
    r"""Straight line from `start` to `stop`: KL warm-up, or a smooth set-point ramp.

    .. math::  \mathrm{start} + (\mathrm{stop} - \mathrm{start}) \min(t / N, 1)

    Args:
        start: Value before training.
        stop: Value from step N on.
        steps: N, the length of the ramp.

    >>> control = Controller(Linear(0.0, 1.0, steps=4))
    >>> [control.step(20.0) for _ in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        _check_finite(start=self.start, stop=self.stop)
        _check_steps(steps=self.steps)

    def at(self, step: Value, xp: Backend) -> Value:
        return self.start + (self.stop - self.start) * xp.clip(step / self.steps, 0.0, 1.0)


@dataclass(frozen=True)
class Staircase(_Interpolation):
    r"""Increments of `step` every `every` steps: the paper's set point for disentangling.

    .. math::  \min(\mathrm{start} + \mathrm{step} \lfloor t / \mathrm{every} \rfloor,
               \mathrm{stop})

    Shao et al., *ControlVAE*, section 4. A `stop` below `start` gives a descending staircase.

    Args:
        start: Value before the first increment.
        stop: Final value.
        step: Size of an increment, positive.
        every: Number of steps between increments.

    >>> control = Controller(Staircase(start=1.0, stop=2.0, step=0.5, every=2))
    >>> [control.step(20.0) for _ in range(5)]
    [1.0, 1.5, 1.5, 2.0, 2.0]
    """

    start: float
    stop: float
    step: float
    every: int

    def __post_init__(self) -> None:
        _check_finite(start=self.start, stop=self.stop, step=self.step)
        _check_steps(every=self.every)
        if not self.step > 0:
            raise ValueError(
                f"step must be positive, got {self.step}; start and stop give the direction"
            )

    def at(self, step: Value, xp: Backend) -> Value:
        # The released code adds an increment when t % every == 0, and counts updates from one:
        # a set point of 16 is reached at t = 520,000.
        direction = math.copysign(1.0, self.stop - self.start)
        distance = self.step * xp.floor(step / self.every)
        return self.start + direction * xp.clip(distance, 0.0, abs(self.stop - self.start))


@dataclass(frozen=True)
class Sigmoid(_Interpolation):
    r"""KL cost annealing along a sigmoid.

    .. math::  \mathrm{start} + (\mathrm{stop} - \mathrm{start})\,
               \sigma\!\left(\frac{t - N/2}{N/10}\right)

    From step N on the value is `stop`. Bowman et al., *Generating Sentences from a Continuous
    Space*, 2016.

    Args:
        steps: N, the length of the ramp.
        start: Value that the sigmoid starts from.
        stop: Value from step N on.

    >>> control = Controller(Sigmoid(steps=4))
    >>> [round(control.step(20.0), 3) for _ in range(4)]
    [0.076, 0.5, 0.924, 1.0]
    """

    steps: int
    start: float = 0.0
    stop: float = 1.0

    def __post_init__(self) -> None:
        _check_steps(steps=self.steps)
        _check_finite(start=self.start, stop=self.stop)

    def at(self, step: Value, xp: Backend) -> Value:
        rising = xp.sigmoid((step - self.steps / 2) / (self.steps / 10))
        progress = xp.where(step < self.steps, rising, 0 * rising + 1)
        return self.start + (self.stop - self.start) * progress


@dataclass(frozen=True)
class Cyclical(_Interpolation):
    """Repeated linear ramps from `start` to `stop`, each followed by a plateau at `stop`.

    Fu et al., *Cyclical Annealing Schedule*, 2019. M cycles in N steps are `period=N // M`.

    Args:
        period: Length of a cycle in steps.
        ramp: Fraction of a cycle in which the value rises.
        start: Value at the start of a cycle.
        stop: Value of the plateau.

    >>> control = Controller(Cyclical(period=4))
    >>> [control.step(20.0) for _ in range(5)]
    [0.5, 1.0, 1.0, 0.0, 0.5]
    """

    period: int
    ramp: float = 0.5
    start: float = 0.0
    stop: float = 1.0

    def __post_init__(self) -> None:
        _check_steps(period=self.period)
        _check_finite(start=self.start, stop=self.stop)
        if not 0 < self.ramp <= 1:
            raise ValueError(
                f"ramp must lie in (0, 1], got {self.ramp}; it is the rising fraction of a period"
            )

    def at(self, step: Value, xp: Backend) -> Value:
        cycles = step / self.period
        progress = xp.clip((cycles - xp.floor(cycles)) / self.ramp, 0.0, 1.0)
        return self.start + (self.stop - self.start) * progress


@dataclass(frozen=True)
class Points(Schedule):
    """Piecewise linear interpolation, for example to replay a recorded β.

    The value is constant before the first point and after the last one.

    Args:
        steps: Increasing steps of the points, at most 200.
        values: Values at these steps.

    >>> control = Controller(Points(steps=(1, 3), values=(1.0, 2.0)))
    >>> [control.step(20.0) for _ in range(4)]
    [1.0, 1.5, 2.0, 2.0]
    """

    steps: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values) or not self.steps:
            raise ValueError(
                "steps and values must have the same length, one or more, "
                f"got {len(self.steps)} and {len(self.values)}"
            )
        if len(self.steps) > _MAX_POINTS:
            raise ValueError(
                f"steps must have at most {_MAX_POINTS} points, got {len(self.steps)}: "
                "a captured graph contains an operation for each"
            )
        if any(later <= earlier for earlier, later in pairwise(self.steps)):
            raise ValueError(f"steps must increase, got {self.steps}")
        for step, value in zip(self.steps, self.values, strict=True):
            _check_finite(step=step, value=value)
        object.__setattr__(self, "steps", tuple(self.steps))  # lists would make the law unhashable
        object.__setattr__(self, "values", tuple(self.values))

    def at(self, step: Value, xp: Backend) -> Value:
        total = 0 * step + self.values[0]
        segments = zip(pairwise(self.steps), pairwise(self.values), strict=True)
        for (begin, end), (low, high) in segments:
            total = total + (high - low) * xp.clip((step - begin) / (end - begin), 0.0, 1.0)
        return total

    def min_value(self) -> float:
        return min(self.values)

    def max_value(self) -> float:
        return max(self.values)
