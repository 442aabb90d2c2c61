"""The Lagrange multiplier of the constraint KL = target: integral action alone."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import AntiWindup, Feedback, State, Target


@dataclass(frozen=True)
class LagrangeMultiplier(Feedback):
    r"""Gradient ascent on the multiplier of KL = target.

    .. math::  \lambda(t) = \lambda(t-1) - \alpha\, e(t)

    Rezende & Viola, *Taming VAEs*, 2018; section 3.5 of the paper, which shows it to be `PI` with `kp=0` and
    `ki=alpha`. Unbounded above by default, as a multiplier is; below by zero, so that KL is never rewarded.
    """

    target: Target
    alpha: float = 1e-4
    beta_min: float = 0.0
    beta_max: float = float("inf")
    beta_init: float | None = None
    anti_windup: AntiWindup = "conditional"
    ema: float = 0.0

    def __post_init__(self) -> None:
        self.check(alpha=self.alpha)

    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        multiplier = state.i - self.alpha * now.error
        zero = self.proportional(now.target, now.measured, xp)
        return self.actuate(state, now, zero, multiplier, zero, xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return 0 * (target - measured)
