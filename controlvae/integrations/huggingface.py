"""Integration with Hugging Face: any `Trainer`, with its KL kept at a target.

Needs `pip install transformers accelerate`. A custom loop under `accelerate` needs nothing from
this file: a `Controller` has a state dict, so
`accelerator.register_for_checkpointing(controller)` saves and restores it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import require_kl_law, require_packages
from controlvae.integrations._files import read_state, write_state
from controlvae.integrations.accumulation import PerOptimiserStep
from controlvae.laws import Law

with require_packages("transformers accelerate"):
    from transformers import Trainer

_STATE_FILE = "kl_control.json"


class ControlledTrainer(Trainer):
    """Trainer that adds the KL to the loss, with a weight that keeps it at its target.

    >>> trainer = ControlledTrainer(model, args, train_dataset=data, law=cv.PI(target=18.0))

    The model returns `loss`, which is the reconstruction alone, and `kl`, both in nats per example.
    The law updates once per optimiser step, on the mean over micro-batches and ranks. The trainer
    logs `kl` (after the law's moving average), `kl_target` and `beta` next to the loss. Every
    checkpoint contains the state, and `train(resume_from_checkpoint=...)` resumes from it. With a
    `model_init`, which makes a new model for every training, the law starts again too. Evaluation
    uses the current weight. Combine it with a custom trainer by inheritance:
    `class Mine(ControlledTrainer, MyTrainer): ...`.

    Args:
        *args: Arguments of `Trainer`.
        law: Control law.
        **kwargs: Arguments of `Trainer`.
    """

    def __init__(self, *args: Any, law: Law, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = PerOptimiserStep(require_kl_law(law))
        self.controller = self._steps.controller

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._steps.start()
        if self.model_init is not None:  # which makes a new model for every training
            self.controller.load_state_dict(Controller(self.controller.laws[0]).state_dict())
        return super().train(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the reconstruction plus the weighted KL.

        Args:
            model: The model.
            inputs: Batch.
            return_outputs: Return the outputs of the model too.
            num_items_in_batch: Number of items by which `Trainer` normalises the loss.
        """
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if not isinstance(outputs, Mapping) or "kl" not in outputs:
            raise UserError(
                "the model must return a dictionary with loss and kl, in nats per example; "
                "its output has no kl"
            )
        kl = outputs["kl"].mean()  # nn.DataParallel returns one value for each device
        if model.training:
            weight = self._steps.weigh(kl, stepping=self.accelerator.sync_gradients)
        else:
            weight = torch.as_tensor(self.controller.beta, dtype=kl.dtype, device=kl.device)
        # Only training divides the loss by the micro-batches of a step.
        loss = loss + weight * kl / (self._divisor(num_items_in_batch) if model.training else 1)
        return (loss, outputs) if return_outputs else loss

    def _divisor(self, num_items_in_batch: Any) -> int:
        """Return the number by which the KL has to be divided.

        `Trainer` divides the loss by the micro-batches of a step, unless the model already did.
        """
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if is_scaled is None:
            is_scaled = self.compute_loss_func is not None or (
                self.model_accepts_loss_kwargs and num_items_in_batch is not None
            )
        return self.current_gradient_accumulation_steps if is_scaled else 1

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            stats = self.controller.stats()
            values = {"kl": stats["measured"], "kl_target": stats["target"], "beta": stats["beta"]}
            # A law may have no target, and there is no KL before the first measurement.
            logs.update({name: value for name, value in values.items() if value is not None})
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            write_state(Path(output_dir) / _STATE_FILE, self.controller)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self._steps.start()
        if checkpoint is not None:
            saved = Path(checkpoint) / _STATE_FILE
            if not saved.exists():
                raise UserError(
                    f"{checkpoint} must contain {_STATE_FILE}: train with ControlledTrainer "
                    "and without save_only_model"
                )
            read_state(saved, self.controller)
