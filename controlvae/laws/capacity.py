"""The capacity β-VAE as a law: bang-bang control by the sign of the error."""

import math
from dataclasses import dataclass
from typing import ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import (
    AntiWindup,
    Constraint,
    Direction,
    ProportionalFeedback,
    Target,
)
from controlvae.laws.checks import check_decay
from controlvae.laws.states import PIState


@dataclass(frozen=True)
class Capacity(ProportionalFeedback):
    r"""The penalty :math:`\gamma\,|KL - C|`, written as a weight of the KL.

    .. math::  \beta(t) = \gamma\, \mathrm{sign}(KL(t) - C(t))

    Both have the same gradient, so the capacity β-VAE differs from the other methods in its law
    alone, which is bang-bang control. Burgess et al., *Understanding disentangling in β-VAE*, 2018,
    raise C from 0 to 15 or 25 nats and use γ = 100 or 1,000.

    Args:
        target: Capacity C in the unit of the measurement (nats per example for a KL), or a
            schedule.
        gamma: Magnitude of the weight.
        ema: Decay of a moving average over measurements; 0 is off.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" for the penalty γ max(KL - C, 0), or "at_least" for
            γ max(C - KL, 0). The weight is zero while the constraint holds.

    >>> control = Controller(Capacity(target=Linear(0.0, 25.0, steps=100_000), gamma=100.0))
    >>> control.step(3.0)  # the KL is above C(1): the penalty pushes it down
    100.0
    """

    target: Target
    gamma: float = 100.0
    ema: float = 0.0
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    state_type = PIState
    beta_init: ClassVar[float | None] = 0.0  # type: ignore[misc]
    anti_windup: ClassVar[AntiWindup] = "none"  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.convert_target()
        self.check_constraint()
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"gamma must be positive, got {self.gamma}")
        check_decay("ema", self.ema)

    @property
    def beta_min(self) -> float:  # type: ignore[override]
        return 0.0 if self.resting_bound == "beta_min" else -self.gamma

    @property
    def beta_max(self) -> float:  # type: ignore[override]
        return 0.0 if self.resting_bound == "beta_max" else self.gamma

    def update(self, state: PIState, measured: Value, xp: Backend = TENSORS) -> PIState:
        now = self.sense(state, measured, xp)
        proportional = self.proportional(now.target, now.measured, xp)
        # The integral stays at -beta_min, so that the output is the proportional term.
        unclamped, integral = self.combine(state, now, xp, state.integral, proportional)
        return self.commit(state, now, unclamped, (integral, proportional), xp)

    def retarget(self, state: PIState, target: Value, xp: Backend = TENSORS) -> PIState:
        """Return the state with a fixed capacity. The next β may jump, as bang-bang control does.

        Args:
            state: State to change. It is not modified.
            target: New capacity in the unit of the measurement.
            xp: Operations for this kind of values.
        """
        moved: PIState = super().retarget(state, target, xp)
        return moved._replace(integral=state.integral)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        error = self.signed_error(target, measured)
        below_or_equal = xp.where(error > 0, -self.gamma + 0 * error, 0 * error)
        return xp.where(error < 0, self.gamma + 0 * error, below_or_equal)
