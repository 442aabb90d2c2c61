"""Base class of laws that act on log β, where a step is a factor of β."""

import math
from typing import Any, ClassVar

from controlvae.laws.backend import Backend, Value
from controlvae.laws.base import AntiWindup, Feedback, Measurement

_MAX_ABS_LOG_BETA = 50.0  # exp(50) is 5e21, which is as good as infinite


class LogDomainFeedback(Feedback):
    """Feedback law with log β = P + I + D.

    While β is at a bound, the integral does not move further beyond it.
    """

    beta_init: float
    allows_zero_weight: ClassVar[bool] = False  # a smallest weight of 0 then means no bound

    @property
    def anti_windup(self) -> AntiWindup:  # type: ignore[override]
        return "conditional"

    def check(self, **gains: float) -> None:
        super().check(**gains)
        if self.beta_init is None:
            raise ValueError("beta_init must be the initial weight, got None")
        if self.beta_min < 0 or (self.beta_min == 0 and not self.allows_zero_weight):
            raise ValueError(
                f"beta_min must be above zero, got {self.beta_min}: the law acts on log beta"
            )

    def initial_state(self) -> Any:
        return super().initial_state()._replace(integral=math.log(self.beta_init))

    def combine(
        self,
        state: Any,
        now: Measurement,
        xp: Backend,
        integral: Value,
        proportional: Value = 0.0,
        derivative: Value = 0.0,
    ) -> tuple[Value, Value]:
        log_beta = proportional + integral + derivative
        low = _log_bound(self.beta_min)
        high = _log_bound(self.beta_max)
        pushes_down = (log_beta < low) & (integral < state.integral)
        pushes_up = (log_beta > high) & (integral > state.integral)
        unclamped = xp.exp(xp.clip(log_beta, -_MAX_ABS_LOG_BETA, _MAX_ABS_LOG_BETA))
        return unclamped, xp.where(pushes_down | pushes_up, state.integral, integral)


def _log_bound(beta: float) -> float:
    """Return log β within ±50, also for bounds of zero and infinity."""
    log = math.log(beta) if beta > 0 else -math.inf
    return min(max(log, -_MAX_ABS_LOG_BETA), _MAX_ABS_LOG_BETA)
