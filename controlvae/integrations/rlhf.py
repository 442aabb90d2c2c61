"""Adaptive KL controller of RLHF programs, with a law that needs no gains and a saved state.

verl, OpenRLHF and SkyRL have the same small class: `AdaptiveKLController(init_kl_coef, target_kl,
horizon)` with `update(current_kl, n_steps)` and `value`. The class of this file has the same
constructor and the same two names. It needs none of these packages. It suits any other program
that multiplies a KL by a coefficient and measures it once per step, such as slime.

verl:

    from controlvae.integrations.rlhf import AdaptiveKLController
    core_algos.AdaptiveKLController = AdaptiveKLController  # get_kl_controller() makes it

OpenRLHF:

    ppo_trainer.AdaptiveKLController = AdaptiveKLController  # before PPOTrainer is made

SkyRL:

    ppo_utils.AdaptiveKLController = AdaptiveKLController  # get_kl_controller() makes it
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from controlvae.controller import Controller
from controlvae.errors import UserError
from controlvae.integrations._checks import require_kl_law
from controlvae.laws import Auto, Law

_MAX_RELATIVE_ERROR = 0.2  # of the original formula


class AdaptiveKLController:
    """KL coefficient of a policy that keeps its KL to the reference at a target.

    >>> control = AdaptiveKLController(0.2, target_kl=6.0, horizon=10_000)
    >>> control.update(current_kl=9.0, n_steps=256)
    >>> penalty = control.value  # times the KL, in the loss or in the reward

    By default the law is `Auto`, which starts at `init_kl_coef` and updates once per call. It does
    not use `horizon` and `n_steps`. With `law="adaptive"` the class computes the original formula
    (Ziegler et al., *Fine-Tuning Language Models from Human Preferences*, 2019, section 2.2).

    Like the original, it belongs to one process and does not communicate: update it with the KL of
    all ranks.

    Args:
        init_kl_coef: Initial coefficient, above zero.
        target_kl: Target of the KL, in the unit of `current_kl`.
        horizon: Horizon of the original formula, in the unit of `n_steps`.
        law: None for `Auto`, "adaptive" for the original formula, or a law on the KL.
        target: Other name of `target_kl`, used by OpenRLHF and SkyRL.
    """

    def __init__(
        self,
        init_kl_coef: float,
        target_kl: float | None = None,
        horizon: float = 10_000,
        *,
        law: Law | Literal["adaptive"] | None = None,
        target: float | None = None,
    ) -> None:
        if (target_kl is None) == (target is None):
            raise UserError(f"target_kl must be a positive number, got {target_kl}")
        target_kl = target if target_kl is None else target_kl
        assert target_kl is not None
        for name, number in (
            ("init_kl_coef", init_kl_coef),
            ("target_kl", target_kl),
            ("horizon", horizon),
        ):
            if not 0 < number < math.inf:
                raise UserError(f"{name} must be a positive number, got {number}")
        self.horizon = horizon
        self.controller: Controller | None = None
        self._target, self._value = float(target_kl), float(init_kl_coef)
        if law != "adaptive":
            law = Auto(target_kl, beta_init=init_kl_coef) if law is None else require_kl_law(law)
            self.controller = Controller(law, sync_ranks=False)

    @property
    def value(self) -> float:
        """Current coefficient of the KL."""
        return self._value if self.controller is None else float(self.controller.beta)

    @property
    def target(self) -> float:
        """Target of the KL."""
        return self._target if self.controller is None else float(self.controller.target)

    def update(self, current_kl: Any = None, n_steps: int = 1, *, current: Any = None) -> None:
        """Update the coefficient with the KL of a batch, a number or a tensor of one element.

        Args:
            current_kl: Mean KL of the batch.
            n_steps: Steps since the last update. The original formula alone uses them.
            current: Other name of `current_kl`, used by OpenRLHF and SkyRL.
        """
        kl = float(current if current_kl is None else current_kl)
        if self.controller is not None:
            self.controller.step(kl)
            return
        error = kl / self._target - 1
        if math.isfinite(error):  # a NaN would stay in the coefficient for the rest of the run
            error = min(max(error, -_MAX_RELATIVE_ERROR), _MAX_RELATIVE_ERROR)
            self._value *= 1 + error * n_steps / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain numbers."""
        if self.controller is None:
            return {"value": self._value}
        return self.controller.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a `state_dict()` of the same law."""
        if self.controller is None:
            if set(saved) != {"value"}:
                raise UserError(
                    f'the saved state must be that of law="adaptive", got the fields {list(saved)}'
                )
            value = float(saved["value"])
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"the saved coefficient must be zero or positive, got {value}")
            self._value = value
        else:
            self.controller.load_state_dict(saved)
