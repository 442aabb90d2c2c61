"""Engine for many text or dialog models: one stacked step, captured for each width on a GPU."""

from collections.abc import Sequence

import torch
from torch import Tensor

from controlvae.lab.config import Experiment
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.engines.base import strip_prefix
from controlvae.lab.engines.cuda_graph import GraphTrainer
from controlvae.lab.engines.measurements import row_width
from controlvae.lab.engines.precision import product_precision
from controlvae.lab.engines.stacked_text.trainer import StackedTrainer


class StackedTextEngine:
    """Trains text or dialog models of one architecture together.

    Every recurrence is one chain of products for all models, and every other layer is one batched
    product. Its numbers differ from the eager engine's by rounding alone.

    Args:
        experiments: Experiments that differ in nothing but seed and law, with shared widths.
        examples: Sentences or dialogs that all models are trained on.
        device: CUDA device; a CPU works too, without capture.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        examples: SentenceDataset | DialogDataset,
        device: torch.device,
    ) -> None:
        if any(experiment.training.widths != "shared" for experiment in experiments):
            raise ValueError("text models can be stacked with training.widths=shared only")
        self.trainer = StackedTrainer(experiments, examples.to(device), device)
        self.precision = experiments[0].training.precision
        self.size = len(experiments), row_width(experiments[0])
        self.captured = GraphTrainer(self.trainer) if device.type == "cuda" else None
        self.step = 0

    def advance(self, steps: int) -> Tensor:
        """Train every model for `steps` steps.

        This is the only call that waits for the device.

        Returns:
            Measurements on the host, (steps, models, columns).
        """
        trainer, captured = self.trainer, self.captured
        indices, noise = trainer.draw_randomness(self.step, steps)
        rows = torch.empty(steps, *self.size, dtype=torch.float64, device=trainer.device)
        with product_precision(self.precision, trainer.device):
            if captured is None:
                for t in range(steps):
                    width = trainer.prepare(self.step + t)
                    rows[t] = trainer.step(width, indices[t], noise[t])
            else:
                main_stream = torch.cuda.current_stream()
                captured.stream.wait_stream(main_stream)
                for t in range(steps):
                    captured.step(self.step + t, indices[t], noise[t], rows[t])
                main_stream.wait_stream(captured.stream)
        self.step += steps
        return rows.cpu()

    def snapshot(self, model: int) -> dict[str, Tensor]:
        """Return the state of one model on the host, under the names of the eager engine."""
        tensors = self.trainer.optimiser.snapshot_model(model)
        control = self.trainer.control.state_dict(model)
        tensors |= {f"control.{name}": value for name, value in control.items()}
        return {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}

    def set_target(self, model: int, target: float) -> None:
        """Change the target of one model."""
        self.trainer.control.set_target(target, model)

    def restore(self, model: int, step: int, tensors: dict[str, Tensor]) -> None:
        """Continue one model from a snapshot of any engine.

        Args:
            model: Index of the model.
            step: Number of steps taken before the snapshot.
            tensors: The snapshot.
        """
        self.trainer.optimiser.restore_model(model, tensors)
        self.trainer.control.load_state_dict(strip_prefix(tensors, "control."), model)
        self.step = step
        if self.captured is not None:
            self.captured.reset()
