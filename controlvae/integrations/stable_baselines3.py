"""Integration with Stable-Baselines3: SAC, PPO and A2C with the entropy of the policy at a target.

Needs `pip install stable-baselines3`. The classes work with algorithms of sb3-contrib that have the
same lines.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import as_entropy_law, require_packages
from controlvae.laws import Law

with require_packages("stable-baselines3"):
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback


class EntropyBonus:
    """Coefficient of the entropy bonus of PPO and A2C that keeps the entropy at a target.

    >>> model = PPO("MlpPolicy", env, ent_coef=EntropyBonus(1.0))

    The algorithm multiplies its coefficient by the negative entropy of each minibatch. This product
    updates the law, so the coefficient is right for the minibatch it is used on. `model.save`
    writes the state with the model, and `PPO.load` restores it. `EntropyLog` logs the coefficient.

    Args:
        target: Target of the mean entropy in nats, or a law with `direction="inverse"`. A number
            means `Auto`.
    """

    def __init__(self, target: float | Law) -> None:
        self.controller = Controller(as_entropy_law(target))

    def __mul__(self, negative_entropy: Tensor) -> Tensor:
        return self.controller.step(-negative_entropy.detach()) * negative_entropy

    def __repr__(self) -> str:
        return f"EntropyBonus({self.controller.laws[0]})"


class EntropyLog(BaseCallback):
    """Callback that logs the entropy, its target and the coefficient of an `EntropyBonus`.

    >>> model.learn(100_000, callback=EntropyLog())
    """

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:  # after the training on the previous rollout
        bonus = getattr(self.model, "ent_coef", None)
        if not isinstance(bonus, EntropyBonus):
            raise UserError(f"ent_coef of the model must be an EntropyBonus, got {bonus!r}")
        stats = bonus.controller.stats()
        if stats["measured"] is not None:  # as long as every measurement was NaN
            self.logger.record("train/entropy", stats["measured"])
        self.logger.record("train/entropy_target", stats["target"])
        self.logger.record("train/ent_coef", stats["beta"])


class ControlledSAC(SAC):
    """SAC whose temperature is set by a law instead of gradient steps.

    >>> model = ControlledSAC("MlpPolicy", env, target_entropy=-2.0)

    Arguments are those of `SAC`. The default law is `Auto` with `target_entropy` ("auto": minus the
    number of action dimensions) that starts at the initial temperature. The temperature updates
    once per gradient step. `save` writes the state of the law and `load` restores it.

    Args:
        *args: Arguments of `SAC`.
        law: Law with `direction="inverse"` whose target replaces `target_entropy`.
        **kwargs: Arguments of `SAC`.
    """

    def __init__(self, *args: Any, law: Law | None = None, **kwargs: Any) -> None:
        self.law = law
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.log_ent_coef is None:
            raise UserError(f'ent_coef must be "auto" or "auto_0.1", got {self.ent_coef!r}')
        target = self.target_entropy if self.law is None else self.law
        law = as_entropy_law(target, self.log_ent_coef.exp().item())
        self.ent_coef_optimizer = TemperatureControl(self.log_ent_coef, law, self.target_entropy)

    @property
    def entropy_controller(self) -> Controller:
        """Controller of the temperature."""
        return self.ent_coef_optimizer.controller


class TemperatureControl(torch.optim.Optimizer):
    """Optimiser of SAC's log temperature that takes the weight of a controller.

    It replaces the optimiser of the loss -log α · (log π + target), whose gradient is the entropy
    minus its target. It is saved and loaded like any optimiser.

    Args:
        log_temperature: Logarithm of the temperature, one element.
        law: Law with `direction="inverse"`.
        loss_target: Target entropy in the loss, which the gradient is relative to.
    """

    def __init__(self, log_temperature: Tensor, law: Law, loss_target: float) -> None:
        super().__init__([log_temperature], {"lr": 0.0})
        self.controller = Controller(law)
        self._log_temperature, self._loss_target = log_temperature, float(loss_target)
        self._write(torch.as_tensor(self.controller.beta))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradient = self._log_temperature.grad
        assert gradient is not None
        self._write(self.controller.step(gradient.sum() + self._loss_target))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "controller": self.controller.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.controller.load_state_dict(state_dict["controller"])
        self._write(torch.as_tensor(self.controller.beta))

    @torch.no_grad()
    def _write(self, temperature: Tensor) -> None:
        self._log_temperature.copy_(temperature.log())
