"""Lightning: a callback that holds a logged KL at its target. Needs `pip install lightning`."""

from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.integrations._requirements import needs
from controlvae.integrations.accumulation import PerOptimiserStep
from controlvae.laws import Law

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:  # the same package under its older name
    with needs("lightning"):
        from pytorch_lightning import Callback, LightningModule, Trainer


class KLControl(Callback):
    """Reads the KL that `training_step` logs, and sets the weight that the next one uses.

    >>> trainer = Trainer(callbacks=[KLControl(cv.PI(target=18.0))])
    >>> # in the module's training_step:
    >>> self.log("kl", kl)  # nats per example: summed over latents, averaged over the batch
    >>> return reconstruction + self.beta * kl

    The law moves once per optimiser step, on the mean over its micro-batches and over ranks, and every rank gets the
    same weight; it rests where no batch of the step logged a KL. `control/kl_target`, `control/kl` and `control/beta`
    are logged. The state is part of the trainer's checkpoint. Several callbacks may hold several terms, each under its
    own names.

    Args:
        law: what to compute.
        kl: the name under which the module logs what is held.
        weight: the module's attribute to write: a number, which becomes a tensor, or a buffer, which keeps its address.
    """

    def __init__(self, law: Law, kl: str = "kl", weight: str = "beta") -> None:
        self.kl, self.weight = kl, weight
        self.steps = PerOptimiserStep(law)
        if law.holds_reconstruction and kl == "kl":
            raise UserError(
                f"{type(law).__name__} watches the reconstruction: log that, and name it, KLControl(law, kl='recon')"
            )
        self.controller = self.steps.controller
        self._optimiser_steps = 0
        self._before: Tensor | None = (
            None  # logged when the batch began; held, so that its memory is no other's
        )

    @property
    def state_key(self) -> str:
        return self._generate_state_key(kl=self.kl, weight=self.weight)

    def state_dict(self) -> dict[str, Any]:
        return self.controller.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.controller.load_state_dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not hasattr(pl_module, self.weight):
            raise UserError(
                f"{type(pl_module).__name__} has no attribute {self.weight!r}: set self.{self.weight} = 0.0 in its "
                f"__init__ and weigh the KL by it, or name another with KLControl(law, weight=...)"
            )
        self.steps.start()
        self._optimiser_steps = trainer.global_step
        self._write(pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._before = trainer.callback_metrics.get(self.kl)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        skipped = (
            pl_module.automatic_optimization and not outputs
        )  # training_step returned None, and may have no KL
        logged = trainer.callback_metrics
        if not skipped:
            if self.kl not in logged:
                raise UserError(
                    f"training_step logged no {self.kl!r}: write self.log({self.kl!r}, kl) there, with on_step=True"
                )
            self._take(logged[self.kl])
        if trainer.global_step == self._optimiser_steps:
            return
        self._optimiser_steps = trainer.global_step
        if not self.steps.pending:
            return
        self.steps.move()
        self._write(pl_module)
        state = self.controller.state
        values = {f"control/{self.kl}": state.measured, f"control/{self.weight}": state.beta}
        if self.controller.target is not None:
            values[f"control/{self.kl}_target"] = state.target
        pl_module.log_dict(values, on_step=True, on_epoch=False)

    def _take(self, logged: Tensor) -> None:
        """What this batch logged; where it logged nothing, Lightning shows what was there before."""
        if self._before is None or logged.data_ptr() != self._before.data_ptr():
            self.steps.add(logged)

    def _write(self, module: LightningModule) -> None:
        held = getattr(module, self.weight)
        if isinstance(held, Tensor):
            held.fill_(self.controller.beta)
        else:  # the state's float64 would turn a float32 loss into float64
            weight = torch.as_tensor(
                self.controller.beta, dtype=torch.get_default_dtype(), device=module.device
            )
            setattr(module, self.weight, weight)
