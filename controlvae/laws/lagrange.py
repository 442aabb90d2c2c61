"""The Lagrange multiplier of the constraint KL = target, which is integral action alone."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import AntiWindup, Feedback, Target
from controlvae.laws.states import IntegralState


@dataclass(frozen=True)
class LagrangeMultiplier(Feedback):
    r"""Gradient ascent on the multiplier of the constraint KL = target.

    .. math::  \lambda(t) = \lambda(t-1) - \alpha\, e(t), \qquad e(t) = v - \mathrm{KL}(t)

    Rezende & Viola, *Taming VAEs*, 2018. Section 3.5 of the ControlVAE paper shows that this is
    `PI` with `kp=0` and `ki=alpha`. By default the weight has no upper bound, like a multiplier,
    and is never negative, so that the KL is never rewarded.

    Args:
        target: Set point in nats per example, or a schedule.
        alpha: Learning rate of the multiplier.
        beta_min: Smallest weight.
        beta_max: Largest weight.
        beta_init: Initial weight. None starts from `beta_min`.
        anti_windup: Condition under which the integral is held; see `PI`.
        ema: Decay of a moving average over measurements; 0 is off.

    >>> control = Controller(LagrangeMultiplier(target=18.0, alpha=1e-3))
    >>> [round(control.step(kl), 4) for kl in (20.0, 20.0, 19.0)]
    [0.002, 0.004, 0.005]
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

    def update(self, state: IntegralState, measured: Value, xp: Backend = TENSORS) -> IntegralState:
        now = self.sense(state, measured, xp)
        multiplier = state.integral - self.alpha * now.error
        unclamped, multiplier = self.combine(state, now, xp, multiplier)
        return self.commit(state, now, unclamped, (multiplier,), xp)
