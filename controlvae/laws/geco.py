"""GECO: minimise the KL at a given reconstruction error."""

from dataclasses import dataclass
from typing import ClassVar

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import Constraint, Direction, Target
from controlvae.laws.log_domain import LogDomainFeedback
from controlvae.laws.states import IntegralState


@dataclass(frozen=True)
class Geco(LogDomainFeedback):
    r"""Minimise the KL subject to a bound κ on the reconstruction error.

    .. math::  \lambda(t) = \lambda(t-1)\, e^{\alpha \bar C(t)},
               \qquad C = \mathrm{reconstruction} - \kappa, \qquad \beta = 1 / \lambda

    Rezende & Viola, *Taming VAEs*, 2018, with their moving average of C. There the multiplier
    weights the constraint; here its inverse weights the KL. The two gradients differ by a factor,
    and Adam is invariant to it. In a custom loop, pass the reconstruction loss:
    `control.step(reconstruction)`.

    Args:
        target: κ, the reconstruction error in nats per example, or a schedule. The negative
            log-likelihood of a density may be negative.
        alpha: Step of log λ per nat of constraint violation. The law settles in about 1 / (α s)
            steps, where s is the change of the reconstruction, in nats, per e-fold of β. In a
            linear VAE, s is β / 2 for every latent in use.
        beta_min: Smallest weight, above zero. The first steps are far above κ and drive β to this
            bound at once. A lower bound lengthens the way back.
        beta_max: Largest weight.
        beta_init: Initial weight.
        ema: Weight of the past in the moving average.
        direction: "inverse": the reconstruction error grows with the weight β of the KL. "direct"
            returns the multiplier λ itself, to weight the reconstruction.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> law = Geco(target=220.0)
    >>> state = law.update(law.init(), torch.tensor(10_220.0))
    >>> round(state.beta.item(), 4)  # 10,000 nats above κ: e^-0.1
    0.9048
    """

    target: Target
    alpha: float = 1e-5
    beta_min: float = 0.01
    beta_max: float = float("inf")
    beta_init: float = 1.0
    ema: float = 0.99
    direction: Direction = "inverse"
    constraint: Constraint = "equal"

    controls_reconstruction: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(alpha=self.alpha)

    def update(self, state: IntegralState, measured: Value, xp: Backend = TENSORS) -> IntegralState:
        now = self.sense(state, measured, xp)
        integral = state.integral - self.alpha * now.error
        unclamped, integral = self.combine(state, now, xp, integral)
        return self.commit(state, now, unclamped, (integral,), xp)
