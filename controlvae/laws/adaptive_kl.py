"""The adaptive KL coefficient of reinforcement learning from human feedback."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import (
    AntiWindup,
    Constraint,
    Direction,
    Feedback,
    Target,
    check_set_point,
)
from controlvae.laws.states import IntegralState

_MAX_RELATIVE_ERROR = 0.2  # of the paper
_TINY = 1e-30  # avoids a division by zero
_LARGEST_WEIGHT = 1e30  # keeps the product finite under a target that cannot be reached


@dataclass(frozen=True)
class AdaptiveKL(Feedback):
    r"""Change β by a factor that is proportional to the clipped relative error.

    .. math::  \beta(t) = \beta(t-1) \left(1 + \frac{n}{H}\,
               \mathrm{clip}\!\left(\frac{\mathrm{KL}(t)}{v} - 1, -0.2, 0.2\right)\right)

    Ziegler et al., *Fine-Tuning Language Models from Human Preferences*, 2019, section 2.2. TRL,
    OpenRLHF and verl have the same formula. It is integral action on log β with a limit: β changes
    by at most a factor of 1 ± 0.2 n/H per update.

    Use it to compare with those programs, or to replace theirs by one whose state is saved. It has
    no proportional term and overshoots where the KL answers late.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
            It must not be zero.
        horizon: H, in examples.
        n_steps: n, the examples per update: the batch size.
        beta_min: Smallest weight, above zero, so that a factor can raise it again.
        beta_max: Largest weight.
        beta_init: Initial weight.
        ema: Decay of a moving average over measurements; 0 is off.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> control = Controller(AdaptiveKL(target=6.0, n_steps=256))
    >>> round(control.step(9.0), 6)  # the relative error of 0.5 is clipped to 0.2
    0.201024
    """

    target: Target
    horizon: float = 10_000
    n_steps: float = 256
    beta_min: float = 1e-6
    beta_max: float = float("inf")
    beta_init: float = 0.2
    ema: float = 0.0
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    anti_windup: ClassVar[AntiWindup] = "conditional"  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.check()
        for name in ("horizon", "n_steps", "beta_min", "beta_init"):
            value = getattr(self, name)
            if value is None or not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive, got {value}")
        if self.n_steps * _MAX_RELATIVE_ERROR >= self.horizon:
            raise ValueError(
                f"horizon must be above {_MAX_RELATIVE_ERROR} n_steps, got horizon={self.horizon}, "
                f"n_steps={self.n_steps}: the weight would become negative"
            )

    def check_target(self, target: Target) -> None:
        check_set_point(target, allow_zero=False)

    def initial_state(self) -> Any:
        return super().initial_state()._replace(integral=float(self.beta_init))

    def update(self, state: IntegralState, measured: Value, xp: Backend = TENSORS) -> IntegralState:
        now = self.sense(state, measured, xp)
        # A ramp towards a tiny set point is rounded to zero.
        target = xp.where(abs(now.target) > _TINY, now.target, _TINY + 0 * now.target)
        excess = now.measured / target - 1
        # Below zero, a ratio above one means a measurement below the target.
        excess = self.sign * xp.where(target > 0, excess, -excess)
        change = xp.clip(excess, -_MAX_RELATIVE_ERROR, _MAX_RELATIVE_ERROR)
        unclamped = state.integral * (1 + change * self.n_steps / self.horizon)
        weight = xp.clip(unclamped, self.beta_min, min(self.beta_max, _LARGEST_WEIGHT))
        return self.commit(state, now, unclamped, (weight,), xp)
