"""What laws on the logarithm of the weight share: a factor is then the same step wherever the weight stands."""

import math

from controlvae.laws.backend import Backend, Value
from controlvae.laws.base import AntiWindup, Feedback, Measurement, State

_LARGEST = 50.0  # of |log β|: exp of it is as good as infinite


class Logarithmic(Feedback):
    """log β = P + I, within the bounds of β; while β is at a bound, the integral does not move further beyond it."""

    beta_init: float

    @property
    def anti_windup(self) -> AntiWindup:  # type: ignore[override]
        return "conditional"

    def check(self, **gains: float) -> None:
        super().check(**gains)
        if self.beta_init is None:
            raise ValueError("beta_init must be a weight to start around, got None")
        if self.beta_min <= 0:
            raise ValueError(
                f"beta_min must be above zero, got {self.beta_min}: the law moves the weight's logarithm"
            )

    def initial(self) -> State:
        return super().initial()._replace(i=math.log(self.beta_init))

    def actuate(
        self, state: State, now: Measurement, p: Value, i: Value, d: Value, xp: Backend
    ) -> State:
        asked = p + i + d
        low, high = max(math.log(self.beta_min), -_LARGEST), min(math.log(self.beta_max), _LARGEST)
        outward = ((asked < low) & (i < state.i)) | ((asked > high) & (i > state.i))
        output = xp.exp(xp.clip(asked, -_LARGEST, _LARGEST))
        return self.moved(state, now, p, xp.where(outward, state.i, i), d, output, xp)
