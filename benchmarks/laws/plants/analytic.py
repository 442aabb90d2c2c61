"""Analytic plant: a first-order lag in logarithms with dead time and noise."""

import torch
from torch import Tensor

from laws.plants.base import Losses, Plant
from laws.stack import Stack


class LogLag(Plant):
    """Quantity whose logarithm follows -slope * log(weight) with a lag and a dead time.

    The plant has no network. Its state is a parameter without a gradient, and the weight reaches
    it through the gradient of the term.

    Args:
        stack: Stack of runs.
        slope: Fall of the logarithm per e-fold of the weight.
        lag: Time constant in steps.
        delay: Dead time in steps, as in training on stale samples.
        noise: Relative noise of a measurement.
        batch: Examples per step, for laws that count them.
    """

    def __init__(
        self,
        stack: Stack,
        slope: float = 0.5,
        lag: float = 100.0,
        delay: int = 0,
        noise: float = 0.05,
        batch: int = 64,
    ) -> None:
        super().__init__(stack)
        self.batch, self.slope, self.lag, self.noise = batch, slope, lag, noise
        self.probe = stack.parameter(1, scale=0.0, shift=1.0)
        self.level = torch.zeros(stack.runs)
        self.pipeline = [torch.zeros(stack.runs) for _ in range(delay + 1)]

    def losses(self, step: int) -> Losses:
        if self.probe.grad is not None:
            self.pipeline.append(self.probe.grad[:, 0].clamp(1e-12, 1e12).log())
            self.level += (-self.slope * self.pipeline.pop(0) - self.level) / self.lag
        noise = 1 + self.noise * self.stack.normal(1)[:, 0]
        value: Tensor = (self.level + 1).exp() * noise
        # The gradient of the term is one, so the gradient of the probe is the weight.
        return Losses(torch.zeros(self.stack.runs), self.probe[:, 0], value)
