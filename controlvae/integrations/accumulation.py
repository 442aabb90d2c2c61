"""A controller that moves when the optimiser does, however many micro-batches that takes."""

from torch import Tensor

from controlvae.controller import Controller
from controlvae.laws import Law


class PerOptimiserStep:
    """Takes in every micro-batch and moves the law on their mean, once for each optimiser step.

    `Controller(law, accumulate=N)` counts to N. Trainers do not: they step on the last, shorter window of an epoch too.
    """

    def __init__(self, law: Law) -> None:
        self.controller = Controller(law)
        self.start()

    def start(self) -> None:
        """Forgets micro-batches that no optimiser step followed."""
        self._pending: list[Tensor] = []

    def weigh(self, kl: Tensor, stepping: bool) -> Tensor:
        """The weight for a micro-batch; `stepping` where the optimiser steps right after it.

        A batch that is a whole step gets the weight that its own KL leads to, as `Controller.step` gives it. In longer
        windows that would need a second forward pass, so every micro-batch gets the weight of the step before.
        """
        before = self.controller.beta
        alone = stepping and not self._pending
        self.add(kl)
        after = self.move() if stepping else before
        weight = after if alone else before
        return weight.to(kl.dtype) if isinstance(weight, Tensor) else kl.new_tensor(weight)

    @property
    def pending(self) -> bool:
        """Whether anything was added since the law moved."""
        return bool(self._pending)

    def add(self, kl: Tensor) -> None:
        self._pending.append(kl.detach())

    def move(self) -> Tensor:
        """One step of the law on the mean of what was added since the last; the weight after it."""
        mean = sum(self._pending[1:], self._pending[0]) / len(self._pending)
        self.start()
        return self.controller.step(mean)
