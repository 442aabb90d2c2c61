"""The general linear PID law (the paper's equation 1), with a filtered derivative."""

from dataclasses import dataclass

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import AntiWindup, Feedback, State, Target


@dataclass(frozen=True)
class PID(Feedback):
    r"""Linear proportional-integral-derivative control.

    .. math::  \beta(t) = \beta_{min} - K_p e(t) - K_i \sum_j e(j) - K_d \dot e(t), \qquad e(t) = v - \widehat v(t)

    Åström & Hägglund, *Advanced PID Control*, 2006. The minus signs make positive gains raise the weight while the
    measurement is above its set point. A batch's KL is noisy and a derivative amplifies noise, so `derivative_ema`
    averages it; the paper leaves the term out for the same reason, hence `kd=0`.
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

    def __post_init__(self) -> None:
        self.check(kp=self.kp, ki=self.ki, kd=self.kd)
        if not 0 <= self.derivative_ema < 1:
            raise ValueError(f"derivative_ema must lie in [0, 1), got {self.derivative_ema}")

    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        p = self.proportional(now.target, now.measured, xp)
        i = state.i - self.ki * now.error
        slope = xp.where(state.seen > 0, now.error - state.error, 0 * now.error)
        d = self.derivative_ema * state.d - (1 - self.derivative_ema) * self.kd * slope
        return self.actuate(state, now, p, i, d, xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return -self.kp * (target - measured)
