"""CUDA-graph engine: the eager engine's steps, captured and replayed on a GPU.

It trains every model that the stacked engine does not support.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import Width
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.engines.precision import product_precision

# Eager steps of each width before its capture, in which libraries set themselves up.
WARM_UP_STEPS = 2


class StepTrainer(Protocol):
    """Trainer whose steps of one width have fixed shapes and addresses."""

    device: torch.device

    def prepare(self, number: int) -> Width:
        """Do the host's work before a step. Returns the width of its batch."""
        ...

    def step(self, width: Width, indices: Tensor, noise: Tensor) -> Tensor:
        """Take one step. Returns its measurements."""
        ...


class _CapturedStep(NamedTuple):
    """Graph of a step of one width, its inputs, and its row of measurements."""

    graph: torch.cuda.CUDAGraph
    indices: Tensor
    noise: Tensor
    row: Tensor


class GraphTrainer:
    """A trainer on its own stream, whose steps are captured after a warm-up and replayed."""

    def __init__(self, trainer: StepTrainer) -> None:
        self.trainer = trainer
        self.stream = torch.cuda.Stream(trainer.device)
        self.reset()

    def reset(self) -> None:
        """Discard all graphs: tensors they read, such as the controller's, may have moved."""
        self.captured: dict[Width, _CapturedStep] = {}
        self.steps_taken: dict[Width, int] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def step(self, number: int, indices: Tensor, noise: Tensor, row: Tensor) -> None:
        """Take one step and write its measurements to `row`, (columns,)."""
        with torch.cuda.stream(self.stream):
            width = self.trainer.prepare(number)
            if self.steps_taken.get(width, 0) < WARM_UP_STEPS:
                self.steps_taken[width] = self.steps_taken.get(width, 0) + 1
                row.copy_(self.trainer.step(width, indices, noise))
                return
            if width not in self.captured:
                self.captured[width] = self._capture(width, indices, noise)
            step = self.captured[width]
            step.indices.copy_(indices)
            step.noise.copy_(noise)
            step.graph.replay()
            row.copy_(step.row)

    def _capture(self, width: Width, indices: Tensor, noise: Tensor) -> _CapturedStep:
        graph, indices, noise = torch.cuda.CUDAGraph(), indices.clone(), noise.clone()
        with torch.cuda.graph(graph, self.pool, self.stream):
            row = self.trainer.step(width, indices, noise)
        return _CapturedStep(graph, indices, noise, row)


class CudaGraphEngine(EagerEngine):
    """Engine with one graph per model and batch width, and one stream per model.

    The host writes the inputs of a step (batch, noise, dropout masks) where the graph reads them.
    Steps are therefore functions of (seed, step), as in the eager engine, and equal to its steps.

    Args:
        experiments: One experiment per model, equal except for seed and control.
        examples: Training data.
        device: A GPU.
    """

    def __init__(
        self, experiments: Sequence[Experiment], examples: Dataset, device: torch.device
    ) -> None:
        super().__init__(experiments, examples, device)
        self.graph_trainers = [GraphTrainer(trainer) for trainer in self.trainers]

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps. See `EagerEngine.advance`."""
        randomness = [trainer.draw_randomness(self.step, steps) for trainer in self.trainers]
        main_stream = torch.cuda.current_stream()
        device = main_stream.device
        shape = (steps, len(self.trainers), self.columns)
        rows = torch.empty(shape, dtype=torch.float64, device=device)
        for each in self.graph_trainers:
            each.stream.wait_stream(main_stream)
        with product_precision(self.precision, device):
            for t in range(steps):
                for model, (each, (indices, noise)) in enumerate(
                    zip(self.graph_trainers, randomness, strict=True)
                ):
                    each.step(self.step + t, indices[t], noise[t], rows[t, model])
        for each in self.graph_trainers:
            main_stream.wait_stream(each.stream)
        self.step += steps
        return rows.cpu()

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Continue one model from a snapshot. See `EagerEngine.restore`.

        Args:
            model: Index of the model.
            step: Number of steps taken before the snapshot.
            tensors: The snapshot.
        """
        super().restore(model, step, tensors)
        self.graph_trainers[model].reset()
