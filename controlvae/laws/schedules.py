"""Numbers that depend on the step alone: set-point ramps, and open-loop weights."""

import math
from dataclasses import dataclass
from itertools import pairwise

from controlvae.laws.backend import Backend, Value
from controlvae.laws.base import Schedule


def _check_finite(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value}")


def _check_steps(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 1):
            raise ValueError(f"{name} must be at least one step, got {value}")


class _Between(Schedule):
    """A schedule that never leaves the interval between its `start` and its `stop`."""

    start: float
    stop: float

    def lowest(self) -> float:
        return min(self.start, self.stop)

    def highest(self) -> float:
        return max(self.start, self.stop)


@dataclass(frozen=True)
class Constant(Schedule):
    """One value for ever: the plain VAE at 1 (Kingma & Welling, 2014), the β-VAE above it (Higgins et al., 2017)."""

    value: float

    def __post_init__(self) -> None:
        _check_finite(value=self.value)

    def at(self, step: Value, xp: Backend) -> Value:
        return 0 * step + self.value

    def lowest(self) -> float:
        return self.value

    highest = lowest


@dataclass(frozen=True)
class Linear(_Between):
    """From `start` to `stop` in a straight line over `steps`, then `stop`: KL warm-up, or a smooth set-point ramp."""

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        _check_finite(start=self.start, stop=self.stop)
        _check_steps(steps=self.steps)

    def at(self, step: Value, xp: Backend) -> Value:
        return self.start + (self.stop - self.start) * xp.clip(step / self.steps, 0.0, 1.0)


@dataclass(frozen=True)
class Staircase(_Between):
    """`start`, then `step` closer to `stop` every `every` steps: the paper's set point for disentangling."""

    start: float
    stop: float
    step: float
    every: int

    def __post_init__(self) -> None:
        _check_finite(start=self.start, stop=self.stop, step=self.step)
        _check_steps(every=self.every)
        if not self.step > 0:
            raise ValueError(
                f"step must be positive, got {self.step}; the staircase goes towards stop by itself"
            )

    def at(self, step: Value, xp: Backend) -> Value:
        # The released code adds a step when t % every == 0, counting updates from one: 16 is reached at t = 520,000.
        climbed = self.step * xp.floor(step / self.every)
        return self.start + math.copysign(1.0, self.stop - self.start) * xp.clip(
            climbed, 0.0, abs(self.stop - self.start)
        )


@dataclass(frozen=True)
class Sigmoid(_Between):
    r"""Cost annealing: :math:`\sigma((t - N/2) / (N/10))` from `start` to `stop`, and `stop` from step N = `steps` on.

    Bowman et al., *Generating Sentences from a Continuous Space*, 2016.
    """

    steps: int
    start: float = 0.0
    stop: float = 1.0

    def __post_init__(self) -> None:
        _check_steps(steps=self.steps)
        _check_finite(start=self.start, stop=self.stop)

    def at(self, step: Value, xp: Backend) -> Value:
        share = xp.sigmoid((step - self.steps / 2) / (self.steps / 10))
        return self.start + (self.stop - self.start) * xp.where(
            step < self.steps, share, 0 * share + 1
        )


@dataclass(frozen=True)
class Cyclical(_Between):
    """Again and again: linear from `start` to `stop` over the first `ramp` of each `period`, then `stop`.

    Fu et al., *Cyclical Annealing Schedule*, 2019. M cycles in N steps are `period=N // M`.
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
                f"ramp must lie in (0, 1], got {self.ramp}; it is the rising share of a period"
            )

    def at(self, step: Value, xp: Backend) -> Value:
        cycles = step / self.period
        share = xp.clip((cycles - xp.floor(cycles)) / self.ramp, 0.0, 1.0)
        return self.start + (self.stop - self.start) * share


@dataclass(frozen=True)
class Points(Schedule):
    """Straight lines through points, flat before the first and after the last: a recorded weight, played again."""

    steps: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values) or not self.steps:
            raise ValueError(
                f"steps and values must be as many, got {len(self.steps)} and {len(self.values)}"
            )
        if len(self.steps) > 200:
            raise ValueError(
                f"at most 200 points, got {len(self.steps)}: a captured step holds them all"
            )
        if any(later <= earlier for earlier, later in pairwise(self.steps)):
            raise ValueError("steps must rise")
        for step, value in zip(self.steps, self.values, strict=True):
            _check_finite(step=step, value=value)
        object.__setattr__(self, "steps", tuple(self.steps))  # lists would make the law unhashable
        object.__setattr__(self, "values", tuple(self.values))

    def at(self, step: Value, xp: Backend) -> Value:
        total = 0 * step + self.values[0]
        for (begin, end), (low, high) in zip(
            pairwise(self.steps), pairwise(self.values), strict=True
        ):
            total = total + (high - low) * xp.clip((step - begin) / (end - begin), 0.0, 1.0)
        return total

    def lowest(self) -> float:
        return min(self.values)

    def highest(self) -> float:
        return max(self.values)
