"""A law without gains to choose: PI action on the logarithm of the weight, from the relative error."""

import math
from dataclasses import dataclass

from controlvae.control.arithmetic import TENSORS, Arithmetic, Value
from controlvae.control.law import AntiWindup, Feedback, State, Target

_KP, _KI = 2.0, 16.0  # per unit of relative error; the second is divided by `reach_in`
_LARGEST = 50.0  # of |log β|: exp of it is as good as infinite


@dataclass(frozen=True)
class Auto(Feedback):
    r"""Reaches its set point in about `reach_in` steps, in twice as many where the loss is scaled by thousands.

    .. math::  \log \beta(t) = \log \beta_0 - 2\,\epsilon(t) - \frac{16}{T} \sum_{j \le t} \epsilon(j),
               \qquad \epsilon = 2\,\frac{v - \mathrm{KL}}{v + \mathrm{KL}}

    In a linear VAE the KL falls by half a nat per latent in use for every e-fold of β, so its logarithm answers that of
    β with a slope of a few tenths whatever data, network, units and batch; gains on logarithms therefore carry over,
    where gains on β itself do not. ε is the relative error near the set point, and stays within 2 when the code has
    collapsed or burst. The KL is averaged over about T / 20 batches.

    For images, text and models of one's own. Not for disentangling, where the slow published gains are part of the
    method: see `PI.paper("disentangling")`.

    Args:
        target: the set point in nats per example, or a ramp.
        reach_in: T, the steps to settle in; about a tenth of the training, and not fewer than 200.
        beta_min: the least weight, above zero.
        beta_max: the largest weight.
        beta_init: the weight to start around.

    >>> law = Auto(target=18.0)
    >>> round(law.update(law.init(), torch.tensor(0.0)).beta.item(), 4)  # no code at all: the weight goes down at once
    0.018
    """

    target: Target
    reach_in: int = 2_000
    beta_min: float = 1e-6
    beta_max: float = float("inf")
    beta_init: float = 1.0

    @property
    def ema(self) -> float:  # type: ignore[override]
        return 1 - 20 / self.reach_in

    @property
    def anti_windup(self) -> AntiWindup:  # type: ignore[override]
        return "conditional"

    def __post_init__(self) -> None:
        if not 200 <= self.reach_in < 1e9:
            raise ValueError(f"reach_in must be 200 steps or more, got {self.reach_in}")
        self.check()
        if self.beta_min <= 0:
            raise ValueError(f"beta_min must be above zero, got {self.beta_min}: the law moves the weight's logarithm")

    def initial(self) -> State:
        return super().initial()._replace(i=math.log(self.beta_init))

    def update(self, state: State, measured: Value, xp: Arithmetic = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        error = _relative(now.target, now.measured)
        p = self.proportional(now.target, now.measured, xp)
        i = state.i - _KI / self.reach_in * error
        asked = xp.clip(p + i, -_LARGEST, _LARGEST)
        low, high = math.log(self.beta_min), math.log(self.beta_max) if self.beta_max < math.inf else math.inf
        outward = ((asked < low) & (error > 0)) | ((asked > high) & (error < 0))
        i = xp.where(outward, state.i, i)
        output = xp.exp(asked)
        after = State(
            state.step + 1, state.seen + 1, state.held, now.target, now.measured, now.error, p, i, 0 * p, output,
            xp.clip(output, self.beta_min, self.beta_max),
        )  # fmt: skip
        return xp.choose(now.usable, after, State(state.step + 1, *state[1:]))

    def proportional(self, target: Value, measured: Value, xp: Arithmetic) -> Value:
        return -_KP * _relative(target, measured)


def _relative(target: Value, measured: Value) -> Value:
    """2 tanh(log(target / measured) / 2), without the logarithm: zero or below is as far as it gets."""
    return 2 * (target - measured) / (target + abs(measured))
