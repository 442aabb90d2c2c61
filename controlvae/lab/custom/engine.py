"""Engine for user-supplied models: eager on a CPU, CUDA graphs on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from controlvae.lab.custom.corrupt import find_corrupt_examples
from controlvae.lab.custom.feeds import ArrayFeed, LoaderFeed, StreamFeed
from controlvae.lab.custom.graph import GraphedTrainer
from controlvae.lab.custom.trainer import CustomTrainer
from controlvae.lab.engines.cpu import keep_freed_memory
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

    @property
    def can_rewind(self) -> bool:
        """True if `restore` is cheap and exact, because all batches are gathered by index."""
        return all(isinstance(trainer.feed, ArrayFeed) for trainer in self.trainers)

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps.

        This is the only call that waits for the device.

        Returns:
            Measurements on the host, (steps, models, columns).
        """
        benchmark = self.device.type == "cuda"
        with (
            _keep_generators(self.device),
            product_precision(self.precision, self.device, benchmark),
        ):
            rows = self._advance_graphed(steps) if self.graphed else self._advance_eager(steps)
        self.step += steps
        return rows.cpu()

    def _advance_eager(self, steps: int) -> Tensor:
        for trainer in self.trainers:
            trainer.start(self.step, steps)
        rows = []
        for number in range(self.step, self.step + steps):
            rows.append(torch.stack([one.step(*one.load(number)) for one in self.trainers]))
        return torch.stack(rows)

    def _advance_graphed(self, steps: int) -> Tensor:
        parts, done = [], 0
        while done < steps:
            count = min(steps - done, self.graphed[0].inputs.chunk)
            parts.append(self._advance_chunk(self.step + done, count))
            done += count
        return torch.cat(parts)

    def _advance_chunk(self, first: int, steps: int) -> Tensor:
        """Take steps whose inputs are all on the device. Returns (steps, models, columns)."""
        main = torch.cuda.current_stream(self.device)
        for one in self.graphed:
            one.inputs.start(first, steps)
        for one in self.graphed:
            one.stream.wait_stream(main)
        # One graph for all models was not faster: 688 against 991 steps/s of eight small MLPs.
        for number in range(first, first + steps):
            for one in self.graphed:
                one.step(number)
        for one in self.graphed:
            main.wait_stream(one.stream)
        return torch.stack([one.inputs.rows[:steps].clone() for one in self.graphed], dim=1)

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return copies of all tensors of one model that change in training, on the host."""
        return self.trainers[model].snapshot()

    def find_bad_example(self, model: int, step: int) -> str:
        """Return words that name an example of a step with NaN or infinity, or an empty text.

        Args:
            model: Index of the model.
            step: Number of the step, counted from zero.
        """
        feed = self.trainers[model].feed
        return feed.find_bad_example(step) if isinstance(feed, LoaderFeed) else ""

    def find_corrupt_examples(self, model: int, step: int) -> list[int]:
        """Return the indices of corrupt examples if the batch of a step has some, else nothing.

        Args:
            model: Index of the model.
            step: Number of the step, counted from zero.
        """
        return find_corrupt_examples(self.trainers[model].feed, step)

    def computes_in_half(self, model: int, step: int) -> bool:
        """Return whether a model computes in float16, whose range ends at 65,504.

        Args:
            model: Index of the model.
            step: Number of the step whose batch is tried, counted from zero.
        """
        return self.trainers[model].computes_in_half(step)

    def close(self) -> None:
        """End the worker processes that read data, and what connects several ranks."""
        for trainer in self.trainers:
            if not trainer.share.is_whole:
                trainer.disconnect_ranks()
            if isinstance(trainer.feed, LoaderFeed | StreamFeed):
                trainer.feed.close()

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
    if device.type != "cuda":
        with torch.random.fork_rng(devices=[]):
            yield
        return
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        generator.graphsafe_set_state(state)
