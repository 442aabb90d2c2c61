"""Integration with LeRobot: a KL target for ACT instead of a fixed `kl_weight`.

>>> policy = ACTPolicy(config)
>>> control = control_kl(policy, cv.Auto(target=4.0))

Nothing of LeRobot is imported. Any policy works whose `model(batch)` returns
`(actions, (mean, log_variance))` in training and whose loss reads `policy.config.kl_weight` after
that call, as `ACTPolicy` of LeRobot does.
"""

from pathlib import Path
from typing import Any

import torch

from controlvae.controller import Controller
from controlvae.distributions import Posterior, gaussian_kl
from controlvae.errors import UserError
from controlvae.integrations._checks import require_kl_law, require_packages
from controlvae.laws import Law

_PREFIX = "kl_control."  # of the controller's values in the policy's state dict


def control_kl(policy: Any, law: Law, checkpoint: str | Path | None = None) -> Controller:
    """Keep the KL of an ACT policy at its target while it trains.

    The KL of a batch sets the weight of the same batch. `policy.config.kl_weight` is the current
    weight, so the saved configuration contains it. `policy.state_dict()`, and with it
    `policy.save_pretrained()`, contains the state of the controller. A policy that is not
    controlled ignores these values when it is loaded. Evaluation does not change the weight.

    Args:
        policy: `ACTPolicy` with `use_vae=True`.
        law: Control law. The target is in nats per action chunk.
        checkpoint: Folder with `model.safetensors`, written by `save_pretrained`, from which the
            controller resumes. None starts the law from its initial weight.

    Returns:
        The controller, for `stats()`, `set_target()` and `certificate()`.
    """
    if not getattr(policy.config, "use_vae", False):
        raise UserError("policy.config.use_vae must be True, got False: without it there is no KL")
    control = Controller(require_kl_law(law))

    def update_weight(model: Any, _: Any, output: Any) -> None:
        mean, log_variance = output[1]
        if model.training and mean is not None:
            kl = gaussian_kl(Posterior(mean.detach(), log_variance.detach()), "mean")
            # A float, because the configuration is saved as JSON. The policy reads its losses on
            # the host in every step anyway.
            policy.config.kl_weight = float(control.step(kl))

    def save_state(_: Any, state_dict: dict[str, Any], prefix: str, __: Any) -> None:
        for name, value in control.state_dict().items():
            state_dict[f"{prefix}{_PREFIX}{name}"] = torch.as_tensor(value, dtype=torch.float64)

    def load_state(_: Any, state_dict: dict[str, Any], prefix: str, *__: Any) -> None:
        start = f"{prefix}{_PREFIX}"
        names = [name for name in state_dict if name.startswith(start)]
        if names:
            control.load_state_dict({name[len(start) :]: state_dict.pop(name) for name in names})
            policy.config.kl_weight = float(control.beta)

    policy.model.register_forward_hook(update_weight)
    policy.register_state_dict_post_hook(save_state)
    policy.register_load_state_dict_pre_hook(load_state)
    if checkpoint is not None:
        load_state(policy, _read_state(Path(checkpoint)), "")
    return control


def _read_state(folder: Path) -> dict[str, Any]:
    """Return the controller's values in the checkpoint of a policy."""
    with require_packages("safetensors"):
        from safetensors import safe_open
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = [name for name in list(file.keys()) if name.startswith(_PREFIX)]
        state = {name: file.get_tensor(name) for name in names}
    if not state:
        raise UserError(
            f"{folder} must contain the state of a controller: save the policy after control_kl"
        )
    return state
