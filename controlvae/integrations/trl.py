"""Integration with TRL: GRPO and RLOO with the KL and the entropy of the policy at targets.

Needs `pip install trl`. Works with every trainer that keeps its coefficients in `beta` and
`entropy_coef` and its measurements in `_metrics`, as those of TRL 1.x do.
"""

from typing import Any

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import as_entropy_law, require_kl_law, require_packages
from controlvae.laws import Auto, Law

with require_packages("trl"):
    from transformers import TrainerCallback

# Name of the metric and of the trainer's attribute that holds its weight.
_WEIGHTS = {"kl": "beta", "entropy": "entropy_coef"}
_STATE_NAME = "PolicyControl"  # in trainer_state.json


class PolicyControl(TrainerCallback):
    """Callback that keeps the KL to the reference and the entropy of the policy at targets.

    >>> trainer = GRPOTrainer(model, reward, GRPOConfig(beta=0.04), train_dataset=prompts)
    >>> trainer.add_callback(PolicyControl(trainer, kl=0.05, entropy=1.5))

    Quantities are those that the trainer logs as `kl` and `entropy`: means over the tokens of all
    micro-batches and ranks, in nats per token. The law updates once per optimiser step, and the
    weight holds from the next step on. The trainer logs `kl_target`, `kl_weight`, `entropy_target`
    and `entropy_weight`. Checkpoints contain the state in `trainer_state.json`, and
    `train(resume_from_checkpoint=...)` resumes from it.

    The KL needs a reference model, so `beta` in the configuration must not be zero. RLOO subtracts
    the KL from the reward and has no entropy bonus.

    Args:
        trainer: The trainer, before `train()`.
        kl: Target of the KL, or a law. A number means `Auto`, which starts at the trainer's `beta`.
        entropy: Target of the entropy, or a law with `direction="inverse"`. A number means `Auto`,
            which starts at the trainer's `entropy_coef` if that is not zero.
    """

    def __init__(
        self, trainer: Any, *, kl: float | Law | None = None, entropy: float | Law | None = None
    ) -> None:
        targets = {"kl": kl, "entropy": entropy}
        self.controllers: dict[str, Controller] = {}
        for name, target in targets.items():
            if target is not None:
                _check_trainer(trainer, name)
                law = _make_law(target, name, getattr(trainer, _WEIGHTS[name]))
                self.controllers[name] = Controller(law, sync_ranks=False)
        if not self.controllers:
            raise UserError("kl or entropy must be a target or a law, got neither")
        self._trainer = trainer
        self._used = dict.fromkeys(self.controllers, 0)  # logged values that a law has seen

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, saved in state.stateful_callbacks.get(_STATE_NAME, {}).items():
            if name in self.controllers:
                self.controllers[name].load_state_dict(saved)
        self._store(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = self._trainer._metrics["train"]
        for name, controller in self.controllers.items():
            values = metrics[name][self._used[name] :]
            self._used[name] = len(metrics[name])
            if values:  # RLOO measures the KL at the steps that generate completions
                controller.step(sum(values) / len(values))
            metrics[f"{name}_target"].append(controller.target)
            metrics[f"{name}_weight"].append(controller.beta)
        self._store(state)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._trainer.model.training:  # the metrics of an evaluation
            return
        self._used = dict.fromkeys(self.controllers, 0)  # the trainer clears its metrics

    def _store(self, state: Any) -> None:
        """Give the weights to the trainer, and the states to its next checkpoint."""
        for name, controller in self.controllers.items():
            setattr(self._trainer, _WEIGHTS[name], controller.beta)
        state.stateful_callbacks[_STATE_NAME] = {
            name: controller.state_dict() for name, controller in self.controllers.items()
        }


def _check_trainer(trainer: Any, name: str) -> None:
    """Raise if the trainer does not measure a quantity or has no weight for it."""
    if not hasattr(trainer, _WEIGHTS[name]) or not hasattr(trainer, "_metrics"):
        raise UserError(
            f"{type(trainer).__name__} has no {_WEIGHTS[name]} to control: use GRPOTrainer"
            + (" or RLOOTrainer" if name == "kl" else "")
        )
    if name == "kl" and trainer.beta == 0:
        raise UserError(
            "beta must not be zero in the trainer's configuration: "
            "otherwise no reference model is loaded"
        )
    if name == "entropy":
        if trainer.use_adaptive_entropy:
            raise UserError("use_adaptive_entropy must be off: two controllers would act at once")
        trainer._entropy_bonus_enabled = True  # also if entropy_coef was zero


def _make_law(target: float | Law, name: str, weight: float) -> Law:
    if name == "entropy":
        return as_entropy_law(target, weight)
    return require_kl_law(target) if isinstance(target, Law) else Auto(target, beta_init=weight)
