"""Keep the KL of scVI at 15 nats per cell, on 700 blood cells that scanpy contains.

`pip install scvi-tools`, then `python examples/with_scvi.py --out kl.png`.

The recipe for other data: counts in `adata.X`, the usual `setup_anndata`, the training plan of this
package instead of scvi's, and a law instead of `n_epochs_kl_warmup`.
"""

from collections.abc import Sequence

import scvi
from blood_cells import load_counts
from common import Trace, parse_arguments
from sklearn.metrics import silhouette_score

import controlvae as cv
from controlvae.integrations.scvi import ControlledTrainingPlan


def main(argv: Sequence[str] | None = None) -> Trace:
    options = parse_arguments(argv, __doc__)
    scvi.settings.seed = 0
    cells = load_counts()
    scvi.model.SCVI.setup_anndata(cells)
    model = scvi.model.SCVI(cells, n_hidden=64)
    model._training_plan_cls = ControlledTrainingPlan
    model.train(
        max_epochs=max(1, options.steps * 128 // cells.n_obs),
        train_size=1.0,
        accelerator="cpu",
        plan_kwargs={"law": cv.Auto(target=15.0)},
        enable_progress_bar=False,
    )
    score = silhouette_score(model.get_latent_representation(), cells.obs["cell_type"])
    print(f"silhouette of the cell types {score:.3f}")
    kl, beta = (
        model.history[name].iloc[:, 0].tolist() for name in ("kl_local_train", "control/kl_weight")
    )
    trace = Trace(15.0, kl, beta)
    trace.draw(options.out, units="nats per cell", time="epoch")
    return trace


if __name__ == "__main__":
    main()
