"""The Lagrange multiplier of the constraint KL = target, which is integral action alone."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import AntiWindup, Constraint, Direction, Feedback, Target
from controlvae.laws.states import IntegralState


@dataclass(frozen=True)
class LagrangeMultiplier(Feedback):
    r"""Gradient ascent on the multiplier of the constraint KL = target.

    .. math::  \lambda(t) = \lambda(t-1) - \alpha\, e(t), \qquad e(t) = v - \mathrm{KL}(t)

    Rezende & Viola, *Taming VAEs*, 2018. Section 3.5 of the ControlVAE paper shows that this is
    `PI` with `kp=0` and `ki=alpha`. By default the weight has no upper bound, like a multiplier,
    and is never negative, so that the KL is never rewarded.

    Near a bound the default differs from projected gradient ascent, the textbook update for an
    inequality. Conditional anti-windup rejects an increment that would cross the bound, and the
    integral stays where it was. Projection moves the multiplier onto the bound. The two differ by
    at most one increment, which was up to 17 % of a β near zero. `projected=True` is the textbook
    update.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
        alpha: Learning rate of the multiplier.
        beta_min: Smallest weight.
        beta_max: Largest weight.
        beta_init: Initial weight. None starts from `beta_min`.
        anti_windup: Condition under which the integral is held; see `PI`.
        ema: Decay of a moving average over measurements; 0 is off.
        projected: Project the multiplier itself onto [beta_min, beta_max] in each step, instead of
            anti-windup.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

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
    projected: bool = False
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    def __post_init__(self) -> None:
        self.check(alpha=self.alpha)
        if self.projected and self.anti_windup != "conditional":
            raise ValueError(
                f"anti_windup must keep its default with projected=True, got {self.anti_windup!r}: "
                "a projection replaces it"
            )

    def update(self, state: IntegralState, measured: Value, xp: Backend = TENSORS) -> IntegralState:
        now = self.sense(state, measured, xp)
        multiplier = state.integral - self.alpha * now.error
        if self.projected:
            unclamped, multiplier = self.project(multiplier, 0.0, xp)
        else:
            unclamped, multiplier = self.combine(state, now, xp, multiplier)
        return self.commit(state, now, unclamped, (multiplier,), xp)
