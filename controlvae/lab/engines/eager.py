"""Eager engine: trains models one after another, operation by operation.

It runs on any device and is the reference for the faster engines.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.base import as_control_state, strip_prefix
from controlvae.lab.engines.cpu import keep_freed_memory
from controlvae.lab.engines.measurements import row_width
from controlvae.lab.engines.precision import product_precision
from controlvae.lab.engines.rate_trainer import RateTrainer
from controlvae.lab.engines.text_trainer import SentenceTrainer, SequenceTrainer
from controlvae.lab.engines.trainer import CriticTrainer, ModelTrainer
from controlvae.lab.ranks.share import BatchShare


class EagerEngine:
    """Engine that trains models one after another, step by step.

    Args:
        experiments: One experiment per model, equal except for seed and control.
        examples: Training data.
        device: Device to train on.
        ranks: Rank of this process and number of ranks that train the models together.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        examples: Dataset,
        device: torch.device,
        ranks: tuple[int, int] = (0, 1),
    ) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        examples = examples.to(device)
        trainer = _trainer_class(experiments[0], examples)
        self.trainers = [
            trainer(experiment, examples, device, BatchShare(*ranks)) for experiment in experiments
        ]
        if ranks[1] > 1:
            for each in self.trainers:
                each.connect_ranks()
        self.precision = experiments[0].training.precision
        self.columns = row_width(experiments[0])
        self.step = 0

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps.

        This is the only call that waits for the device.

        Returns:
            Measurements on the host, (steps, models, columns).
        """
        with product_precision(self.precision, self.trainers[0].device):
            rows = [trainer.advance(self.step, steps) for trainer in self.trainers]
        self.step += steps
        return torch.stack(rows, dim=1).cpu()

    def close(self) -> None:
        """Remove the hooks that average gradients over ranks."""
        for trainer in self.trainers:
            trainer.disconnect_ranks()

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return copies of all tensors of one model that change in training, on the host."""
        trainer = self.trainers[model]
        tensors = {
            prefix + name: value
            for prefix, optimiser in trainer.optimisers.items()
            for name, value in optimiser.snapshot().items()
        }
        for name, value in trainer.control.state_dict().items():
            tensors[f"control.{name}"] = torch.as_tensor(value, dtype=torch.float64)
        # Clones, because safetensors refuses shared memory; contiguous, as it stores no strides.
        return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}

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
        trainer = self.trainers[model]
        for prefix, optimiser in trainer.optimisers.items():
            optimiser.restore(strip_prefix(tensors, prefix))
        trainer.control.load_state_dict(as_control_state(strip_prefix(tensors, "control.")))
        self.step = step


def _trainer_class(experiment: Experiment, examples: Dataset) -> type[ModelTrainer]:
    match examples:
        case SentenceDataset():
            return SentenceTrainer
        case DialogDataset():
            return SequenceTrainer
    if experiment.rates is not None:
        return RateTrainer
    return ModelTrainer if experiment.objective.critic_spec() is None else CriticTrainer
