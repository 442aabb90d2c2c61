"""Keep the KL of scVI at 12 nats per cell, on synthetic counts.

`pip install scvi-tools`, then `python examples/with_scvi.py --out kl.png`.
"""

from collections.abc import Sequence

import anndata
import numpy as np
import scvi
from common import Trace, parse_arguments

import controlvae as cv
from controlvae.integrations.scvi import ControlledTrainingPlan


def make_cells(seed: int = 0) -> anndata.AnnData:
    """Return 2,048 cells of 8 types with 100 genes."""
    random = np.random.default_rng(seed)
    rates = random.gamma(1.0, 3.0, (8, 100))[random.integers(8, size=2_048)]
    return anndata.AnnData(random.poisson(rates).astype(np.float32))


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    scvi.settings.seed = 0
    data = make_cells()
    scvi.model.SCVI.setup_anndata(data)
    model = scvi.model.SCVI(data, n_hidden=64, n_latent=8)
    model._training_plan_cls = ControlledTrainingPlan
    model.train(
        max_epochs=max(1, options.steps * 128 // data.n_obs),
        train_size=1.0,
        accelerator="cpu",
        plan_kwargs={"law": cv.Auto(target=12.0, reach_in=500)},
        enable_progress_bar=False,
    )
    kl, beta = (
        model.history[name].iloc[:, 0].tolist() for name in ("kl_local_train", "control/kl_weight")
    )
    trace = Trace(12.0, kl, beta)
    trace.draw(options.out, units="nats per cell", time="epoch")
    return trace


if __name__ == "__main__":
    main()
