"""Random numbers of a training step, as a function of (seed, step)."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.ranks.row_noise import RowNoise

_STEP_STREAM = 1 << 48  # random stream of step 0; each step has its own


class Noise:
    """Random numbers that `terms(batch, noise)` receives.

    >>> z = mean + std * noise                # standard normal, in the shape of `std`
    >>> z = mean + std * noise.like(mean)     # the same, spelt out
    >>> u = noise.uniform(len(x), 10)         # in [0, 1), such as for Gumbel-softmax

    Each use draws new numbers. They are a function of the run's seed and of the step, so a resumed
    run draws the same ones.

    Args:
        device: Device of the numbers.
        dtype: Type of the numbers.
        rows: Draws for the whole batch where this process computes some of its rows. A first axis
            as long as these rows is taken for the examples.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        rows: RowNoise | None = None,
    ) -> None:
        self.device, self.dtype = device, dtype
        self._drawing = rows or nullcontext()

    def like(self, tensor: Tensor) -> Tensor:
        """Return standard normal noise in the shape and type of a tensor."""
        with self._drawing:
            return torch.randn_like(tensor)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal noise."""
        with self._drawing:
            return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform noise in [0, 1)."""
        with self._drawing:
            return torch.rand(*shape, device=self.device, dtype=self.dtype)

    def __mul__(self, scale: Tensor) -> Tensor:
        return scale * self.like(scale)

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Draw noise in the shape of the tensor that it is combined with."""
        tensors = [value for value in args if isinstance(value, Tensor)]
        if not tensors:
            return NotImplemented
        drawn = [value.like(tensors[0]) if isinstance(value, Noise) else value for value in args]
        return function(*drawn, **(kwargs or {}))


class StepSeeds:
    """Seeds the global generators for each step, so that a model's own draws can be repeated.

    Args:
        seed: Seed of the run.
        device: Device of the model.
        python: Seed Python's and NumPy's generators too.
    """

    def __init__(self, seed: int, device: torch.device, python: bool = False) -> None:
        self.seed, self.python = seed, python
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generators.append(torch.cuda.default_generators[index])

    def start(self, step: int) -> None:
        """Seed the generators for a step."""
        key = stream_key(self.seed, _STEP_STREAM + step)
        for generator in self._generators:
            generator.manual_seed(key)
        if self.python:
            random.seed(key)
            np.random.seed(key % 2**32)


def uses_python_randomness(function: Callable[[], Any]) -> bool:
    """Return whether a call draws from the generators of Python or NumPy."""
    before = random.getstate(), str(np.random.get_state())
    function()
    return before != (random.getstate(), str(np.random.get_state()))
