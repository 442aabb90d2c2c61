"""The νPI law: a PI controller of a Lagrange multiplier on an averaged error."""

from dataclasses import dataclass
from typing import ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import AntiWindup, Constraint, Direction, Feedback, Target
from controlvae.laws.states import PIState


@dataclass(frozen=True)
class NuPI(Feedback):
    r"""PI control of a Lagrange multiplier, with a moving average in the proportional term.

    .. math::  \beta(t) = \beta(t-1) - K_i\, e(t) - K_p\, (\xi(t) - \xi(t-1)),
               \qquad \xi(t) = \nu\, \xi(t-1) + (1 - \nu)\, e(t)

    Sohrabi et al., *On PI controllers for updating Lagrange multipliers in constrained
    optimization*, ICML 2024. As in the paper and in the package cooper, ξ is zero at the first
    step, which is therefore gradient ascent with step `ki`. β is projected onto its bounds in each
    step, which is anti-windup as well.

    Special cases: `kp=0` is projected gradient ascent, `kp=ki` with `nu=0` the optimistic gradient
    method, and other values are gradient ascent with Polyak's or Nesterov's momentum.

    Use it in place of `LagrangeMultiplier` where the multiplier oscillates: `kp` damps it.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
        kp: Proportional gain, zero or positive.
        ki: Integral gain, zero or positive: the learning rate of the multiplier.
        nu: Weight of the past in ξ, in (-1, 1). 0 is a plain PI law.
        beta_min: Smallest weight.
        beta_max: Largest weight.
        beta_init: Initial weight. None starts from `beta_min`.
        ema: Decay of a moving average over measurements, in both terms; 0 is off.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> control = Controller(NuPI(target=18.0, kp=0.01, ki=0.001))
    >>> [round(control.step(kl), 4) for kl in (20.0, 20.0, 19.0)]
    [0.002, 0.024, 0.015]
    """

    target: Target
    kp: float = 0.01
    ki: float = 0.001
    nu: float = 0.0
    beta_min: float = 0.0
    beta_max: float = float("inf")
    beta_init: float | None = None
    ema: float = 0.0
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    state_type = PIState
    anti_windup: ClassVar[AntiWindup] = "conditional"  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.check(kp=self.kp, ki=self.ki)
        if not -1 < self.nu < 1:
            raise ValueError(f"nu must lie in (-1, 1), got {self.nu}; 0 is a plain PI law")

    def update(self, state: PIState, measured: Value, xp: Backend = TENSORS) -> PIState:
        now = self.sense(state, measured, xp)
        # The proportional term is -kp ξ, so its recursion is that of ξ.
        average = self.nu * state.proportional - (1 - self.nu) * self.kp * now.error
        p = xp.where(state.measured_count > 0, average, state.proportional)
        unclamped, i = self.project(state.integral - self.ki * now.error, p, xp)
        return self.commit(state, now, unclamped, (i, p), xp)

    def retarget(self, state: PIState, target: Value, xp: Backend = TENSORS) -> PIState:
        moved: PIState = super().retarget(state, target, xp)
        # The errors in ξ move with the set point, and the integral takes over the difference.
        shift = self.kp * self.signed_error(target, state.target)
        shift = xp.where(state.measured_count > 0, shift, 0 * shift)
        return moved._replace(
            proportional=state.proportional - shift, integral=state.integral + shift
        )
