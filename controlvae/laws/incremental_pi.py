"""The incremental PI law of DynamicVAE."""

from dataclasses import dataclass
from typing import Any, ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import (
    AntiWindup,
    Constraint,
    Direction,
    ProportionalFeedback,
    Target,
)
from controlvae.laws.states import PIState


@dataclass(frozen=True)
class IncrementalPI(ProportionalFeedback):
    r"""The paper's nonlinear PI law in its incremental (velocity) form, on an averaged KL.

    .. math::  \beta(t) = \beta(t-1) + K_p \left[\sigma(-e(t)) - \sigma(-e(t-1))\right]
               - K_i\, e(t), \qquad e(0) = 0

    Shao et al., *Rethinking Controllable Variational Autoencoders*, CVPR 2022 (DynamicVAE). The
    weight starts high, so that the code is empty at first, and the set point rises along a ramp.
    β is projected onto its bounds in each step. The released program stops the integral instead
    while β is below its bound.

    The defaults are those of the released program for 2D shapes. It averages the KL over the last
    five batches. The moving average here has the same mean age, two batches.

    Use it where β starts far from its final value, as in disentangling with an empty code.
    Otherwise `PI` does the same with a bounded proportional term.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
        kp: Proportional gain, zero or positive.
        ki: Integral gain, zero or positive.
        beta_min: Smallest weight.
        beta_max: Largest weight.
        beta_init: Initial weight.
        ema: Decay of the moving average over measurements; 0 is off.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> control = Controller(IncrementalPI(target=18.0, beta_init=50.0))
    >>> round(control.step(0.0), 3)  # 0.005 * 18 lower, and 0.005 for the proportional term
    49.905
    """

    target: Target
    kp: float = 0.01
    ki: float = 0.005
    beta_min: float = 0.1
    beta_max: float = float("inf")
    beta_init: float = 50.0
    ema: float = 2 / 3
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    state_type = PIState
    anti_windup: ClassVar[AntiWindup] = "conditional"  # type: ignore[misc]

    def __post_init__(self) -> None:
        self.check(kp=self.kp, ki=self.ki)
        if self.beta_init is None:
            raise ValueError("beta_init must be the initial weight, got None")

    def initial_state(self) -> Any:
        state = super().initial_state()
        initial_term = self.kp / 2  # of an error of zero
        return state._replace(integral=state.integral - initial_term, proportional=initial_term)

    def update(self, state: PIState, measured: Value, xp: Backend = TENSORS) -> PIState:
        now = self.sense(state, measured, xp)
        p = self.proportional(now.target, now.measured, xp)
        # The sum of all increments is a proportional and an integral term.
        unclamped, i = self.project(state.integral - self.ki * now.error, p, xp)
        return self.commit(state, now, unclamped, (i, p), xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return self.kp * xp.sigmoid(self.signed_error(measured, target))  # of the negative error
