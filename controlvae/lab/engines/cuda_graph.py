"""The plain engine's steps as CUDA graphs: for every model that the stacked engine does not know."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.data.bucketing import Width
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.engines.eager import EagerEngine, ModelTrainer
from controlvae.lab.engines.precision import products_in

_PLAIN = 2  # steps of a width that are taken operation by operation first: libraries set themselves up in them


class _Graph(NamedTuple):
    """A step of one width: what it reads, and where it leaves its row of measurements."""

    graph: torch.cuda.CUDAGraph
    indices: Tensor
    noise: Tensor
    row: Tensor


class _Replayed:
    """A learner on a stream of its own, whose steps are replayed once they have been taken."""

    def __init__(self, learner: ModelTrainer) -> None:
        self.learner = learner
        self.stream = torch.cuda.Stream(learner.key.device)
        self.forget()

    def forget(self) -> None:
        """Captures all over again: what a graph reads may be elsewhere, as a controller's state at first."""
        self.graphs: dict[Width, _Graph] = {}
        self.taken: dict[Width, int] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def step(self, number: int, indices: Tensor, noise: Tensor, row: Tensor) -> None:
        """One step; its measurements go to `row`, (columns,)."""
        with torch.cuda.stream(self.stream):
            width = self.learner.prepare(number)
            if self.taken.get(width, 0) < _PLAIN:
                self.taken[width] = self.taken.get(width, 0) + 1
                row.copy_(self.learner.step(width, indices, noise))
                return
            if width not in self.graphs:
                self.graphs[width] = self._capture(width, indices, noise)
            step = self.graphs[width]
            step.indices.copy_(indices)
            step.noise.copy_(noise)
            step.graph.replay()
            row.copy_(step.row)

    def _capture(self, width: Width, indices: Tensor, noise: Tensor) -> _Graph:
        graph, indices, noise = torch.cuda.CUDAGraph(), indices.clone(), noise.clone()
        with torch.cuda.graph(graph, self.pool, self.stream):
            row = self.learner.step(width, indices, noise)
        return _Graph(graph, indices, noise, row)


class CudaGraphEngine(EagerEngine):
    """Trains models beside each other on a GPU: a graph for each model and width of a batch, a stream for each model.

    What a step needs of the host (its batch, noise and dropout masks) is written where the graph reads it, so steps are
    functions of (seed, step) here too, and equal the plain engine's.
    """

    def __init__(
        self, experiments: Sequence[Experiment], examples: Dataset, device: torch.device
    ) -> None:
        super().__init__(experiments, examples, device)
        self.replayed = [_Replayed(learner) for learner in self.learners]

    def advance(self, steps: int) -> Tensor:
        chances = [learner.draw_randomness(self.step, steps) for learner in self.learners]
        here = torch.cuda.current_stream()
        rows = torch.empty(
            steps, len(self.learners), self.columns, dtype=torch.float64, device=here.device
        )
        for each in self.replayed:
            each.stream.wait_stream(here)
        with products_in(self.precision, here.device):
            for t in range(steps):
                for model, (each, (indices, noise)) in enumerate(
                    zip(self.replayed, chances, strict=True)
                ):
                    each.step(self.step + t, indices[t], noise[t], rows[t, model])
        for each in self.replayed:
            here.wait_stream(each.stream)
        self.step += steps
        return rows.cpu()

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        super().restore(model, step, tensors)
        self.replayed[model].forget()
