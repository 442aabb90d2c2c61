"""pythae: a trainer that holds any of its VAEs at a target. Needs `pip install pythae`."""

import json
from pathlib import Path
from typing import Any

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import on_the_kl
from controlvae.integrations._requirements import needs
from controlvae.laws import Law

with needs("pythae"):
    from pythae.trainers import BaseTrainer


class ControlledTrainer(BaseTrainer):
    """pythae's trainer with `loss = recon_loss + β(t) reg_loss`, whatever weight the model itself has.

    >>> trainer = ControlledTrainer(VAE(config), train_dataset, training_config=..., law=cv.PI(target=18.0))

    For models whose loss is reconstruction + weight · KL, as in VAE, BetaVAE, VAE_IAF and VAMP; others are refused. The
    last model is saved where pythae keeps the one of lowest loss, which means little while the weight moves. The
    controller's state lies in each checkpoint as `control.json`.
    """

    def __init__(self, *args: Any, law: Law, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.controller = Controller(on_the_kl(law))
        self._checked = False

    def _optimizers_step(self, model_output: Any = None) -> None:
        if not self._checked:
            self._check(model_output)
        kl = model_output.reg_loss
        model_output["loss"] = model_output.recon_loss + self.controller.step(kl) * kl
        super()._optimizers_step(model_output)

    def _check(self, output: Any) -> None:
        model = getattr(self.model, "module", self.model)
        whole = "recon_loss" in output and "reg_loss" in output
        if whole:  # held against the KL, which is small beside the reconstruction of a picture, and float32's rounding
            rest = output.loss - output.recon_loss - getattr(model, "beta", 1.0) * output.reg_loss
            whole = bool(
                rest.abs().max()
                <= 1e-3 * output.reg_loss.abs().max() + 1e-6 * output.loss.abs().max()
            )
        if not whole:
            raise UserError(
                f"{type(model).__name__}'s loss is not reconstruction + weight * KL: it cannot be held"
            )
        self._checked = True

    def save_model(self, model: Any, dir_path: str) -> None:
        super().save_model(self.model, dir_path)

    def save_checkpoint(self, model: Any, dir_path: str, epoch: int) -> None:
        super().save_checkpoint(self.model, dir_path, epoch)
        state = {name: float(value) for name, value in self.controller.state_dict().items()}
        (Path(dir_path) / f"checkpoint_epoch_{epoch}" / "control.json").write_text(
            json.dumps(state)
        )
