"""The least KL at a given reconstruction error: GECO, a law that watches the reconstruction instead of the KL."""

from dataclasses import dataclass
from typing import ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import State, Target
from controlvae.laws.log_domain import Logarithmic


@dataclass(frozen=True)
class Geco(Logarithmic):
    r"""Lowers the weight of the KL while the reconstruction error is above its bound, and raises it while below.

    .. math::  \lambda(t) = \lambda(t-1)\, e^{\alpha \bar C(t)}, \qquad C = \mathrm{reconstruction} - \kappa,
               \qquad \beta = 1 / \lambda

    Rezende & Viola, *Taming VAEs*, 2018, with their moving average of C. There the multiplier weighs the constraint,
    here its inverse weighs the KL: the gradients differ by a factor, which Adam does not see. In a loop of one's own,
    `control.step(reconstruction)`.

    Args:
        target: κ, the reconstruction error to allow, in nats per example, or a ramp; that of a density may be
            negative.
        alpha: the step of log λ for each nat that the reconstruction is off. It settles in some 1 / (α s) steps, where
            s nats of reconstruction go with an e-fold of β: in a linear VAE β / 2 for every latent in use.
        beta_min: the least weight, above zero. The first steps, far above κ, take the weight down here at once; the
            lower it is, the longer the way back.
        beta_max: the largest weight.
        beta_init: the weight to start from.
        ema: the share of the past in the average.

    >>> law = Geco(target=220.0)
    >>> round(law.update(law.init(), torch.tensor(10_220.0)).beta.item(), 4)  # 10,000 nats too many: e^-0.1
    0.9048
    """

    target: Target
    alpha: float = 1e-5
    beta_min: float = 0.01
    beta_max: float = float("inf")
    beta_init: float = 1.0
    ema: float = 0.99

    holds_reconstruction: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(alpha=self.alpha)

    def update(self, state: State, measured: Value, xp: Backend = TENSORS) -> State:
        now = self.sense(state, measured, xp)
        zero = self.proportional(now.target, now.measured, xp)
        return self.actuate(state, now, zero, state.i + self.alpha * now.error, zero, xp)

    def proportional(self, target: Value, measured: Value, xp: Backend) -> Value:
        return 0 * (target - measured)
