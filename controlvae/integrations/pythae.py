"""Integration with pythae: a trainer that keeps the KL of its VAEs at a target.

Needs `pip install pythae`.
"""

from pathlib import Path
from typing import Any

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import require_kl_law, require_packages
from controlvae.integrations._files import write_state
from controlvae.laws import Law

with require_packages("pythae"):
    from pythae.trainers import BaseTrainer


class ControlledPythaeTrainer(BaseTrainer):
    """pythae's trainer with `loss = recon_loss + β(t) reg_loss`. The model's own weight is ignored.

    >>> trainer = ControlledPythaeTrainer(VAE(config), data, training_config=..., law=cv.Auto(18.0))

    It works for models whose loss is reconstruction + weight · KL, such as VAE, BetaVAE, VAE_IAF
    and VAMP, and raises an error for others. It saves the last model. pythae saves the one of
    lowest loss, which means little while the weight moves. Each checkpoint contains the state of
    the controller as `control.json`.

    Args:
        *args: Arguments of `BaseTrainer`.
        law: Control law.
        **kwargs: Arguments of `BaseTrainer`.
    """

    def __init__(self, *args: Any, law: Law, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.controller = Controller(require_kl_law(law))
        self._is_checked = False

    def _optimizers_step(self, model_output: Any = None) -> None:
        if not self._is_checked:
            self._check_loss(model_output)
        kl = model_output.reg_loss
        model_output["loss"] = model_output.recon_loss + self.controller.step(kl) * kl
        super()._optimizers_step(model_output)

    def _check_loss(self, output: Any) -> None:
        """Raise unless the model's loss is reconstruction + weight · KL."""
        model = getattr(self.model, "module", self.model)
        is_weighted_sum = "recon_loss" in output and "reg_loss" in output
        if is_weighted_sum:
            rest = output.loss - output.recon_loss - getattr(model, "beta", 1.0) * output.reg_loss
            # Relative to the KL, which is small compared with the reconstruction of an image, plus
            # the rounding of float32.
            tolerance = 1e-3 * output.reg_loss.abs().max() + 1e-6 * output.loss.abs().max()
            is_weighted_sum = bool(rest.abs().max() <= tolerance)
        if not is_weighted_sum:
            raise UserError(
                "the loss must be reconstruction + weight * KL to control the KL, "
                f"but that of {type(model).__name__} is not"
            )
        self._is_checked = True

    def save_model(self, model: Any, dir_path: str) -> None:
        super().save_model(self.model, dir_path)

    def save_checkpoint(self, model: Any, dir_path: str, epoch: int) -> None:
        super().save_checkpoint(self.model, dir_path, epoch)
        file = Path(dir_path) / f"checkpoint_epoch_{epoch}" / "control.json"
        write_state(file, self.controller)


ControlledTrainer = ControlledPythaeTrainer  # name of version 0.1
