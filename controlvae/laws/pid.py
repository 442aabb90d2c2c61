"""The linear PID law (equation 1 of the paper) with a filtered derivative."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import (
    AntiWindup,
    Constraint,
    Direction,
    ProportionalFeedback,
    Target,
)
from controlvae.laws.checks import check_decay
from controlvae.laws.states import PIDState


@dataclass(frozen=True)
class PID(ProportionalFeedback):
    r"""Linear proportional-integral-derivative control.

    .. math::  \beta(t) = \beta_{min} - K_p e(t) - K_i \sum_j e(j) - K_d \dot e(t),
               \qquad e(t) = v - \widehat v(t)

    Åström & Hägglund, *Advanced PID Control*, 2006. The minus signs make positive gains raise the
    weight while the measurement is above its set point. The KL of a batch is noisy, and a
    derivative amplifies noise, so `derivative_ema` averages it. The paper omits the derivative for
    the same reason, hence `kd=0`.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
        kp: Proportional gain, zero or positive.
        ki: Integral gain, zero or positive.
        kd: Derivative gain, zero or positive.
        beta_min: Smallest weight, and the offset of the output.
        beta_max: Largest weight.
        beta_init: Initial weight. None starts from `beta_min`.
        anti_windup: Condition under which the integral is held; see `PI`.
        ema: Decay of a moving average over measurements; 0 is off.
        derivative_ema: Decay of the moving average over the derivative.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> control = Controller(PID(target=18.0, kp=0.01, ki=0.001))
    >>> round(control.step(20.0), 4)
    0.022
    """

    target: Target
    kp: float = 0.01
    ki: float = 0.001
    kd: float = 0.0
    beta_min: float = 0.0
    beta_max: float = 1.0
    beta_init: float | None = None
    anti_windup: AntiWindup = "conditional"
    ema: float = 0.0
    derivative_ema: float = 0.9
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    state_type = PIDState

    def __post_init__(self) -> None:
        self.check(kp=self.kp, ki=self.ki, kd=self.kd)
        check_decay("derivative_ema", self.derivative_ema)

    def update(self, state: PIDState, measured: Value, xp: Backend = TENSORS) -> PIDState:
        now = self.sense(state, measured, xp)
        p = self.proportional(now.target, now.measured, xp)
        i = state.integral - self.ki * now.error
        change = now.error - self.sign * state.error
        slope = xp.where(state.measured_count > 0, change, 0 * now.error)
        d = self.derivative_ema * state.derivative - (1 - self.derivative_ema) * self.kd * slope
        unclamped, i = self.combine(state, now, xp, i, p, d)
        return self.commit(state, now, unclamped, (i, p, d), xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return -self.kp * self.signed_error(target, measured)
