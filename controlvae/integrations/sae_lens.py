"""Integration with SAELens: a target L0 instead of `l0_coefficient` or `l1_coefficient`.

>>> trainer = SAETrainer(cfg, sae, data_provider)
>>> control = control_l0(trainer, cv.Auto(target=20.0))
>>> trainer.fit()

Nothing of SAELens is imported. L0 is the number of latents that are active for an input. Under
`LanguageModelSAETrainingRunner`, which makes its own trainer, override one method:

>>> class Runner(LanguageModelSAETrainingRunner):
...     def run_trainer_with_interruption_handling(self, trainer):
...         control_l0(trainer, cv.Auto(target=20.0))
...         return super().run_trainer_with_interruption_handling(trainer)
"""

from typing import Any

from torch import Tensor

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import require_kl_law
from controlvae.laws import Law


class ControlledCoefficient:
    """Coefficient of the sparsity loss that keeps L0 at its target.

    It has the interface of SAELens's `CoefficientScheduler`, so the trainer logs its value and
    saves its state. The L0 of a batch sets the coefficient of the next one.

    Args:
        law: Control law of L0.
    """

    def __init__(self, law: Law) -> None:
        self.control = Controller(law)
        self._measured: Tensor | None = None

    @property
    def value(self) -> Any:
        """Current coefficient: a float before the first step, then a tensor."""
        return self.control.beta

    def measure(self, acts: Tensor) -> None:
        """Keep the mean L0 of the activations (..., latents) of a batch."""
        self._measured = (acts.detach() > 0).float().sum(-1).mean()

    def step(self) -> Any:
        """Update the law with the L0 measured last and return the new coefficient."""
        if self._measured is not None:
            self.control.step(self._measured)
            self._measured = None
        return self.value

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the controller."""
        return {"control": self.control.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict()`."""
        if "control" not in state_dict:
            raise UserError(
                "the checkpoint must contain the state of a controller, got that of a fixed "
                "coefficient: call control_l0 after the checkpoint is loaded"
            )
        self.control.load_state_dict(state_dict["control"])


def control_l0(trainer: Any, law: Law, coefficient: str | None = None) -> Controller:
    """Keep the L0 of a sparse autoencoder at its target while SAELens trains it.

    Call it before `trainer.fit()`. Checkpoints of the trainer contain the state of the controller,
    and `trainer.load_trainer_state()` restores it, before or after this call. Warm-up settings of
    the coefficient have no effect.

    Args:
        trainer: `SAETrainer` of an architecture with a sparsity coefficient, such as `standard`,
            `gated` or `jumprelu` with the `step` or `tanh` loss.
        law: Control law. The target is the mean number of active latents.
        coefficient: Name of the coefficient. None takes the only one.

    Returns:
        The controller, for `stats()`, `set_target()` and `certificate()`.
    """
    schedulers = trainer.coefficient_schedulers
    name = next(iter(schedulers)) if coefficient is None and len(schedulers) == 1 else coefficient
    if name not in schedulers:
        raise UserError(
            f"coefficient must be one of {', '.join(schedulers) or 'none'}, got {coefficient!r}: "
            f"{type(trainer.sae).__name__} needs a sparsity coefficient"
        )
    if getattr(trainer.sae.cfg, "jumprelu_sparsity_loss_mode", None) == "quadratic":
        raise UserError(
            "jumprelu_sparsity_loss_mode must be 'step' or 'tanh', got 'quadratic', which already "
            "has a target"
        )
    controlled = ControlledCoefficient(require_kl_law(law))
    previous = schedulers[name]
    if "control" in vars(previous):  # a checkpoint was loaded before this call
        controlled.load_state_dict({"control": vars(previous)["control"]})
    schedulers[name] = controlled

    def measure(_: Any, __: Any, acts: Tensor) -> None:
        if trainer.sae.training:
            controlled.measure(acts)

    trainer.sae.hook_sae_acts_post.register_forward_hook(measure)
    return controlled.control
