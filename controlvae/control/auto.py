"""A law without gains to choose: PI action on the logarithm of the weight, from the relative error."""

from dataclasses import dataclass

from controlvae.control.arithmetic import TENSORS, Arithmetic, Value
from controlvae.control.law import State, Target
from controlvae.control.logarithmic import Logarithmic

_KP, _KI = 2.0, 16.0  # per unit of relative error; the second is divided by `reach_in`


@dataclass(frozen=True)
class Auto(Logarithmic):
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

    def __post_init__(self) -> None:
        if not 200 <= self.reach_in < 1e9:
            raise ValueError(f"reach_in must be 200 steps or more, got {self.reach_in}")
        self.check()

    def update(self, state: State, measured: Value, xp: Arithmetic = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        error = _relative(now.target, now.measured)
        p = self.proportional(now.target, now.measured, xp)
        return self.actuate(state, now, p, state.i - _KI / self.reach_in * error, 0 * p, xp)

    def proportional(self, target: Value, measured: Value, xp: Arithmetic) -> Value:
        return -_KP * _relative(target, measured)


def _relative(target: Value, measured: Value) -> Value:
    """2 tanh(log(target / measured) / 2), without the logarithm: zero or below is as far as it gets."""
    return 2 * (target - measured) / (target + abs(measured))
