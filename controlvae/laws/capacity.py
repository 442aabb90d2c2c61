"""The capacity β-VAE as a law: a weight that is all or nothing, by the sign of the error."""

import math
from dataclasses import dataclass
from typing import ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import AntiWindup, Feedback, State, Target, check_target


@dataclass(frozen=True)
class Capacity(Feedback):
    r"""The penalty :math:`\gamma\,|KL - C|` written as a weight on the KL.

    .. math::  \beta(t) = \gamma\, \mathrm{sign}(KL(t) - C(t))

    Both have the same gradient, so the capacity β-VAE differs from the other methods in its law alone: it is bang-bang
    control. Burgess et al., *Understanding disentangling in β-VAE*, 2018, with C rising from 0 to 15 or 25 nats and
    γ = 100 or 1,000.
    """

    target: Target
    gamma: float = 100.0
    ema: float = 0.0

    beta_init: ClassVar[float | None] = 0.0  # type: ignore[misc]
    anti_windup: ClassVar[AntiWindup] = "none"  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.take_target()
        if not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"gamma must be positive, got {self.gamma}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), got {self.ema}")

    @property
    def beta_min(self) -> float:  # type: ignore[override]
        return -self.gamma

    @property
    def beta_max(self) -> float:  # type: ignore[override]
        return self.gamma

    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        p = self.proportional(now.target, now.measured, xp)
        return self.actuate(
            state, now, p, state.i, 0 * p, xp
        )  # the integral stays at -beta_min: the output is p

    def retarget(self, state: State, target: Value, xp: Backend = TENSORS) -> State:
        """Here the weight does jump, by its nature: the integral is no memory that could take it up."""
        return super().retarget(state, target, xp)._replace(i=state.i)

    def check_target(self, target: Target) -> None:
        check_target(target, zero=True)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        error = target - measured
        return xp.where(
            error < 0,
            self.gamma + 0 * error,
            xp.where(error > 0, -self.gamma + 0 * error, 0 * error),
        )
