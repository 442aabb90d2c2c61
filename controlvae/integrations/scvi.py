"""scvi-tools: a training plan with a KL target in the place of a warm-up. Needs `pip install scvi-tools`."""

from typing import Any

from torch import Tensor

from controlvae.integrations._checks import on_the_kl
from controlvae.integrations._requirements import needs
from controlvae.integrations.lightning import KLControl
from controlvae.laws import Law

with needs("scvi-tools"):
    from lightning.pytorch import Callback
    from scvi.module._constants import MODULE_KEYS
    from scvi.train import TrainingPlan


class ControlledTrainingPlan(TrainingPlan):
    """scvi's plan with `kl_weight` moved by a law, so that the KL of a cell's code stays at its target.

    >>> model._training_plan_cls = ControlledTrainingPlan
    >>> model.train(plan_kwargs={"law": cv.Auto(target=10.0)})

    The KL is in nats per cell: that of z where the model names it, of all local latents otherwise. Settings of the
    warm-up have no effect. Everything else is `KLControl`'s: see `controlvae.integrations.lightning`.
    """

    _kl_weight: Any = 0.0

    def __init__(self, module: Any, *, law: Law, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)
        self._law = on_the_kl(law)

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
        if mode == "train":
            parts: dict[str, Tensor] = loss_output.kl_local
            kl = (
                parts[MODULE_KEYS.KL_Z_KEY].sum()
                if MODULE_KEYS.KL_Z_KEY in parts
                else loss_output.kl_local_sum
            )
            self.log(
                "kl_train", kl.detach() / loss_output.n_obs_minibatch, on_step=True, on_epoch=False
            )
