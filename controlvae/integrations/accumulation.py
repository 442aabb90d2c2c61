"""Controller that updates once per optimiser step, for any number of micro-batches."""

from torch import Tensor

from controlvae.controller import Controller
from controlvae.laws import Law


class PerOptimiserStep:
    """Collects the KL of micro-batches and updates the law on their mean, once per optimiser step.

    `Controller(law, accumulate=N)` counts to N. Trainers do not: they also step after the shorter
    last window of an epoch.

    >>> steps = PerOptimiserStep(PI(target=18.0))
    >>> weight = steps.weigh(torch.tensor(25.0), stepping=True)  # a window of one micro-batch
    >>> round(weight.item(), 4)
    0.017
    """

    def __init__(self, law: Law) -> None:
        self.controller = Controller(law)
        self.start()

    def start(self) -> None:
        """Discard micro-batches that no optimiser step followed."""
        self._pending: list[Tensor] = []

    def weigh(self, kl: Tensor, stepping: bool) -> Tensor:
        """Return the weight for a micro-batch, and update the law if the optimiser steps.

        A batch that is a whole step gets the weight that its own KL leads to, as from
        `Controller.step`. In longer windows that would need a second forward pass, so every
        micro-batch gets the weight of the previous step.

        Args:
            kl: KL of the micro-batch in nats per example.
            stepping: The optimiser steps right after this micro-batch.
        """
        before = self.controller.beta
        is_whole_step = stepping and not self._pending
        self.add(kl)
        after = self.update() if stepping else before
        weight = after if is_whole_step else before
        return weight.to(kl.dtype) if isinstance(weight, Tensor) else kl.new_tensor(weight)

    @property
    def has_pending(self) -> bool:
        """True if a KL was added since the last update."""
        return bool(self._pending)

    def add(self, kl: Tensor) -> None:
        """Add the KL of a micro-batch to the window."""
        self._pending.append(kl.detach())

    def update(self) -> Tensor:
        """Update the law on the mean of the window and return the new weight."""
        mean = sum(self._pending[1:], self._pending[0]) / len(self._pending)
        self.start()
        return self.controller.step(mean)
