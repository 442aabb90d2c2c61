"""scVI held at 12 nats per cell, on counts made up here.

`pip install scvi-tools`, then `python examples/with_scvi.py --out kl.png`.
"""

from collections.abc import Sequence
from typing import Any

import anndata
import numpy as np
import scvi
from common import Trace, arguments
from lightning.pytorch import Callback, Trainer

import controlvae as cv
from controlvae.integrations.scvi import ControlledTrainingPlan


def cells(seed: int = 0) -> anndata.AnnData:
    """2,048 cells of 8 kinds, 100 genes."""
    random = np.random.default_rng(seed)
    rates = random.gamma(1.0, 3.0, (8, 100))[random.integers(8, size=2_048)]
    return anndata.AnnData(random.poisson(rates).astype(np.float32))


class Recorder(Callback):
    def __init__(self, target: float) -> None:
        self.trace = Trace(target, [], [])

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.trace.kl.append(trainer.callback_metrics["control/kl"].item())
        self.trace.beta.append(trainer.callback_metrics["control/beta"].item())


def main(given: Sequence[str] | None = None) -> Trace:
    options = arguments(given, __doc__)
    scvi.settings.seed = 0
    data = cells()
    scvi.model.SCVI.setup_anndata(data)
    model = scvi.model.SCVI(data, n_hidden=64, n_latent=8)
    model._training_plan_cls = ControlledTrainingPlan
    recorder = Recorder(12.0)
    model.train(
        max_epochs=max(1, options.steps * 128 // data.n_obs), train_size=1.0, accelerator="cpu", callbacks=[recorder],
        plan_kwargs={"law": cv.Auto(target=12.0, reach_in=500)}, enable_progress_bar=False,
    )  # fmt: skip
    recorder.trace.draw(options.out)
    return recorder.trace


if __name__ == "__main__":
    main()
