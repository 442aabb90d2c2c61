"""Optimiser settings: Adam with an optional learning-rate schedule and gradient clipping."""

import math
from dataclasses import dataclass

from controlvae.laws import Schedule
from controlvae.laws.backend import FLOATS, Backend, Value


@dataclass(frozen=True)
class Adam:
    """Settings of Adam (Kingma & Ba, 2015).

    The default betas are those of the released code. The paper prints 0.99 for the second one.

    Attributes:
        rate: Learning rate: a number, or a schedule over the steps such as
            `Points((20_000, 40_000), (1e-3, 1e-4))`.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        clip: Largest norm of the gradient over all weights, or None for no clipping.
    """

    rate: float | Schedule = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be positive and finite, got {self.clip}")
        lowest, highest = scheduled_range(self.rate)
        if not 0 < lowest <= highest < math.inf:
            raise ValueError(f"rate must be positive and finite, got {self.rate}")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError(
                f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}"
            )

    def at(self, step: Value, xp: Backend = FLOATS) -> Value:
        """Return the learning rate of a step; steps count from one."""
        return scheduled_value(self.rate, step, xp)


def scheduled_range(setting: float | Schedule) -> tuple[float, float]:
    """Return the lowest and the highest value of a number or a schedule."""
    if isinstance(setting, Schedule):
        return setting.min_value(), setting.max_value()
    return setting, setting


def scheduled_value(setting: float | Schedule, step: Value, xp: Backend) -> Value:
    """Return the value of a number or a schedule at a step.

    Args:
        setting: A number or a schedule.
        step: Step number, counted from one: a float or a tensor.
        xp: Operations for that kind of `step`.
    """
    return setting.at(step, xp) if isinstance(setting, Schedule) else setting
