"""Hugging Face: any `Trainer` with its KL held at a target. Needs `pip install transformers accelerate`.

A loop of one's own under `accelerate` needs nothing from here: a `Controller` has a state dict, so
`accelerator.register_for_checkpointing(controller)` has it saved and restored.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import on_the_kl
from controlvae.integrations._requirements import needs
from controlvae.integrations.accumulation import PerOptimiserStep
from controlvae.laws import Law

with needs("transformers accelerate"):
    from transformers import Trainer

_SAVED = "kl_control.json"


class ControlledTrainer(Trainer):
    """Adds the KL to the loss, weighed so that it stays at its target.

    >>> trainer = ControlledTrainer(model, args, train_dataset=data, law=cv.PI(target=18.0))

    The model returns `loss`, which is the reconstruction alone, and `kl`, both in nats per example. The law moves once
    per optimiser step, on the mean over micro-batches and ranks. `kl` (after the law's moving average), `kl_target` and
    `beta` are logged beside the loss. The state is in every checkpoint, and `train(resume_from_checkpoint=...)` goes on
    from it; with a `model_init`, which makes a new model for every training, the law begins anew too. Evaluation uses
    the weight as it stands. In front of a trainer of one's own: `class Mine(ControlledTrainer, MyTrainer): ...`.
    """

    def __init__(self, *args: Any, law: Law, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = PerOptimiserStep(on_the_kl(law))
        self.controller = self._steps.controller

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._steps.start()
        if self.model_init is not None:  # which makes a new model for every training
            self.controller.load_state_dict(Controller(self.controller.laws[0]).state_dict())
        return super().train(*args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if not isinstance(outputs, Mapping) or "kl" not in outputs:
            raise UserError(
                "the model's output has no kl: return a dictionary with loss and kl, in nats per example"
            )
        kl = outputs["kl"].mean()  # under nn.DataParallel there is one for each device
        if model.training:
            weight = self._steps.weigh(kl, stepping=self.accelerator.sync_gradients)
        else:
            weight = torch.as_tensor(self.controller.beta, dtype=kl.dtype, device=kl.device)
        # Training alone divides by the micro-batches of a step.
        loss = loss + weight * kl / (self._divisor(num_items_in_batch) if model.training else 1)
        return (loss, outputs) if return_outputs else loss

    def _divisor(self, num_items_in_batch: Any) -> int:
        """The Trainer divides the loss by the micro-batches of a step, unless the model has already done it."""
        own = self.compute_loss_func is not None or (
            self.model_accepts_loss_kwargs and num_items_in_batch is not None
        )
        scaled = getattr(self, "loss_is_scaled_for_ga", None)
        return (
            self.current_gradient_accumulation_steps if (own if scaled is None else scaled) else 1
        )

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            stats = self.controller.stats()
            target = {} if stats["target"] is None else {"kl_target": stats["target"]}
            logs.update(kl=stats["measured"], **target, beta=stats["beta"])
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            state = {name: float(value) for name, value in self.controller.state_dict().items()}
            (Path(output_dir) / _SAVED).write_text(json.dumps(state))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self._steps.start()
        if checkpoint is not None:
            saved = Path(checkpoint) / _SAVED
            if not saved.exists():
                raise UserError(
                    f"{checkpoint} has no {_SAVED}: a ControlledTrainer writes it, unless save_only_model is set"
                )
            self.controller.load_state_dict(json.loads(saved.read_text()))
