"""Engine for user-supplied models: eager on a CPU, CUDA graphs on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from controlvae.lab.custom.graph import GraphedTrainer
from controlvae.lab.custom.trainer import CustomTrainer
from controlvae.lab.engines.cpu import keep_freed_memory
from controlvae.lab.engines.measurements import row_width
from controlvae.lab.engines.precision import product_precision


class CustomEngine:
    """Engine that trains user-supplied models side by side. See `controlvae.lab.engines.base`.

    On a GPU each model has its own stream, and its step is one CUDA graph if it can be.

    Args:
        trainers: One trainer per model.
        note: Receives a line if a step cannot be captured.
        capture: Capture steps on a GPU.
    """

    def __init__(
        self,
        trainers: Sequence[CustomTrainer],
        note: Callable[[str], None] = lambda line: None,
        capture: bool = True,
    ) -> None:
        self.trainers = list(trainers)
        self.device = trainers[0].device
        self.step = 0
        training = trainers[0].experiment.training
        self.precision = training.precision
        self.graphed: list[GraphedTrainer] = []
        if self.device.type == "cpu":
            keep_freed_memory()
        elif capture and self.device.type == "cuda":
            self.graphed = [GraphedTrainer(trainer, note) for trainer in self.trainers]

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps.

        This is the only call that waits for the device.

        Returns:
            Measurements on the host, (steps, models, columns).
        """
        with ExitStack() as context:
            context.enter_context(_keep_generators(self.device))
            context.enter_context(product_precision(self.precision, self.device))
            for trainer in self.trainers:
                trainer.start(self.step, steps)
            rows = self._advance_graphed(steps) if self.graphed else self._advance_eager(steps)
        self.step += steps
        return rows.cpu()

    def _advance_eager(self, steps: int) -> Tensor:
        rows = []
        for number in range(self.step, self.step + steps):
            rows.append(torch.stack([one.step(*one.load(number)) for one in self.trainers]))
        return torch.stack(rows)

    def _advance_graphed(self, steps: int) -> Tensor:
        width = row_width(self.trainers[0].experiment)
        rows = torch.empty(
            steps, len(self.trainers), width, dtype=torch.float64, device=self.device
        )
        main = torch.cuda.current_stream(self.device)
        if len(self.graphed) > 1 and any(one.uses_generator for one in self.graphed):
            # Graphs share the generator's seed on the device, so they must not overlap.
            for one in self.graphed:
                one.stream = self.graphed[0].stream
        streams = {one.stream for one in self.graphed}
        for stream in streams:
            stream.wait_stream(main)
        for number in range(steps):
            for model, one in enumerate(self.graphed):
                one.step(self.step + number, rows[number, model])
        for stream in streams:
            main.wait_stream(stream)
        return rows

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return copies of all tensors of one model that change in training, on the host."""
        return self.trainers[model].snapshot()

    def set_target(self, model: int, target: float) -> None:
        """Change the target of one model."""
        self.trainers[model].control.set_target(target)

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Continue one model from a snapshot.

        Args:
            model: Index of the model.
            step: Number of steps taken before the snapshot.
            tensors: The snapshot.
        """
        self.trainers[model].restore(step, tensors)
        if self.graphed:
            self.graphed[model].reset()
        self.step = step


@contextmanager
def _keep_generators(device: torch.device) -> Iterator[None]:
    """Leave the user's global generators as they were: steps seed them."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
