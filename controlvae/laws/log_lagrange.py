"""The multiplier of a constraint in the log domain, as soft actor-critic learns it."""

from dataclasses import dataclass
from typing import Literal

from controlvae.laws.backend import TENSORS, Backend, Value
from controlvae.laws.base import Constraint, Direction, Target
from controlvae.laws.checks import check_choice
from controlvae.laws.log_domain import LogDomainFeedback
from controlvae.laws.states import LogLagrangeState

StepRule = Literal["adam", "sgd"]

_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8  # the defaults of Adam


@dataclass(frozen=True)
class LogLagrange(LogDomainFeedback):
    r"""Gradient steps on the logarithm of a Lagrange multiplier.

    .. math::  \log \beta(t) = \log \beta(t-1) - \alpha\, e(t)

    Haarnoja et al., *Soft Actor-Critic Algorithms and Applications*, 2018, learn the temperature of
    the entropy this way: the loss is log β · (H - target), and its gradient is the error. Adam
    takes the step there, and it is the default here. Adam divides the averaged error by its typical
    size, so the speed of log β is about α in any unit. `step_rule="sgd"` is the formula above.

    Use it to compare with soft actor-critic, with `direction="inverse"` for an entropy. The weight
    stays positive without a bound. It moves by about α per step however large the error is, and
    overshoots where the quantity answers slowly.

    Args:
        target: Set point in the unit of the measurement (nats per example for a KL), or a schedule.
        alpha: Learning rate of log β.
        beta_min: Smallest weight, above zero.
        beta_max: Largest weight.
        beta_init: Initial weight.
        step_rule: "adam" with the usual constants, or "sgd" for a plain gradient step.
        ema: Decay of a moving average over measurements; 0 is off.
        direction: "direct" if the measurement falls as its weight rises, "inverse" if it grows.
        constraint: "equal", or "at_most" or "at_least": the weight then rests at a bound while the
            constraint holds.

    >>> control = Controller(LogLagrange(target=-6.0, direction="inverse"))
    >>> round(control.step(-2.0), 6)  # the entropy is above its target: e^-0.0003
    0.9997
    """

    target: Target
    alpha: float = 3e-4
    beta_min: float = 1e-6
    beta_max: float = float("inf")
    beta_init: float = 1.0
    step_rule: StepRule = "adam"
    ema: float = 0.0
    direction: Direction = "direct"
    constraint: Constraint = "equal"

    state_type = LogLagrangeState

    def __post_init__(self) -> None:
        self.check(alpha=self.alpha)
        check_choice("step_rule", self.step_rule, StepRule)

    def update(
        self, state: LogLagrangeState, measured: Value, xp: Backend = TENSORS
    ) -> LogLagrangeState:
        now = self.sense(state, measured, xp)
        first, second, step = state.first_moment, state.second_moment, now.error
        if self.step_rule == "adam":
            first, second, step = self._adam(state, now.error)
        unclamped, i = self.combine(state, now, xp, state.integral - self.alpha * step)
        return self.commit(state, now, unclamped, (i, first, second), xp)

    def _adam(self, state: LogLagrangeState, error: Value) -> tuple[Value, Value, Value]:
        """Return both moments and the step, for a learning rate of one."""
        count = state.measured_count + 1
        first = _FIRST_DECAY * state.first_moment + (1 - _FIRST_DECAY) * error
        second = _SECOND_DECAY * state.second_moment + (1 - _SECOND_DECAY) * error * error
        # A power of a number is the only root that floats and arrays share.
        root = (second / (1 - _SECOND_DECAY**count)) ** 0.5
        return first, second, first / (1 - _FIRST_DECAY**count) / (root + _EPSILON)
