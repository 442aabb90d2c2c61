"""Integration with scvi-tools: a training plan with a KL target instead of a warm-up.

Needs `pip install scvi-tools`.
"""

from typing import Any

from torch import Tensor

from controlvae.integrations._checks import require_kl_law, require_packages
from controlvae.integrations.lightning import KLControl
from controlvae.laws import Law

with require_packages("scvi-tools"):
    from lightning.pytorch import Callback
    from scvi.module._constants import MODULE_KEYS
    from scvi.train import TrainingPlan


class ControlledTrainingPlan(TrainingPlan):
    """scvi's training plan with a `kl_weight` that keeps the KL per cell at its target.

    >>> model._training_plan_cls = ControlledTrainingPlan
    >>> model.train(plan_kwargs={"law": cv.Auto(target=10.0)})

    The KL is in nats per cell. It is that of z if the model names it, and that of all local latents
    otherwise. Warm-up settings have no effect. Everything else works as in
    `controlvae.integrations.lightning.KLControl`.

    Args:
        module: Module of the scvi model.
        law: Control law.
        **kwargs: Arguments of `TrainingPlan`.
    """

    _kl_weight: Any = 0.0

    def __init__(self, module: Any, *, law: Law, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)
        self._law = require_kl_law(law)

    def configure_callbacks(self) -> list[Callback]:
        return [KLControl(self._law, kl="kl_train", weight="kl_weight")]

    @property
    def kl_weight(self) -> Any:
        return self._kl_weight

    @kl_weight.setter
    def kl_weight(self, weight: Any) -> None:
        self._kl_weight = weight

    def compute_and_log_metrics(self, loss_output: Any, metrics: Any, mode: str) -> None:
        super().compute_and_log_metrics(loss_output, metrics, mode)
        if mode != "train":
            return
        terms: dict[str, Tensor] = loss_output.kl_local
        if MODULE_KEYS.KL_Z_KEY in terms:
            kl = terms[MODULE_KEYS.KL_Z_KEY].sum()
        else:
            kl = loss_output.kl_local_sum
        kl_per_cell = kl.detach() / loss_output.n_obs_minibatch
        self.log("kl_train", kl_per_cell, on_step=True, on_epoch=False)
