"""Compilation of user-supplied models: their loss terms as fused kernels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.custom.adapter import CustomVAE, Losses
from controlvae.lab.custom.failures import summarise
from controlvae.lab.custom.noise import Noise

# On an H200 a compiled step is 1.2 times as fast, and compilation takes 5 to 13 s.
_MIN_STEPS = 100_000


def saves_time(experiments: Sequence[Experiment], device: torch.device) -> bool:
    """Return whether compilation makes training shorter.

    Several models side by side are limited by the number of kernels that a GPU starts, and were not
    faster.

    Args:
        experiments: Experiments that are trained side by side.
        device: Device to train on.
    """
    long_enough = experiments[0].training.steps >= _MIN_STEPS
    return device.type == "cuda" and len(experiments) == 1 and long_enough


class LossFunction:
    """Loss terms of a model, compiled if that is wanted and possible.

    Models of one class share a compilation. Random numbers are those of the uncompiled model.

    Args:
        vae: The model.
        compiles: Compile the terms at the first call.
        note: Receives a line if they cannot be compiled.
    """

    def __init__(
        self,
        vae: CustomVAE,
        compiles: bool = False,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.vae, self.is_compiled, self.note = vae, compiles, note
        self._compiled: Callable[..., Losses] = vae.losses
        if compiles:
            self._compiled = torch.compile(
                vae.losses, dynamic=False, options={"fallback_random": True}
            )

    def __call__(self, batch: Any, noise: Tensor | Noise) -> Losses:
        """Return the loss terms of a batch. See `CustomVAE.losses`."""
        if not self.is_compiled:
            return self.vae.losses(batch, noise)
        try:
            return self._compiled(batch, noise)
        except Exception as error:
            losses = self.vae.losses(batch, noise)  # raises again if the model itself failed
            self.stop_compiling(summarise(error))
            return losses

    def stop_compiling(self, reason: str) -> None:
        """Compute the terms without compilation from now on, and say why."""
        self.is_compiled = False
        self.note(f"training without compilation: {reason}")

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Compute the terms without compilation within this context."""
        before, self.is_compiled = self.is_compiled, False
        try:
            yield
        finally:
            self.is_compiled = before
