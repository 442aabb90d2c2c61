"""Keep the KL of scVI at a target, on real single-cell counts.

    python benchmarks/hosts/scvi_pbmc.py

Trains `scvi.model.SCVI` for 400 epochs, scvi's own number for so few cells, on the 700 blood cells
of scanpy's `pbmc68k_reduced` (`examples/blood_cells.py` restores their counts). Rivals are scvi's
default, a KL warm-up over 400 epochs, and a constant weight of 1. Every run also records the ELBO
of held-out cells, and how well the latents agree with the given cell types: the silhouette, and the
adjusted Rand index (ARI) of Leiden clusters. Needs `pip install scvi-tools igraph`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import scanpy
import scvi
import torch
from common import OURS, make_entry, parse_arguments, save_entries, score_run
from sklearn.metrics import adjusted_rand_score, silhouette_score

import controlvae as cv
from controlvae.integrations.scvi import ControlledTrainingPlan

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from blood_cells import load_counts

TARGETS = (8.0, 12.0, 18.0)
EPOCHS = 400
STEPS_PER_EPOCH = 5  # 630 training cells in batches of 128
RIVALS: dict[str, dict[str, Any]] = {
    "400-epoch warm-up": {"n_epochs_kl_warmup": 400},
    "weight 1": {"n_epochs_kl_warmup": None, "n_steps_kl_warmup": 1},
}
NOTE = (
    "SCVI with 10 latents and 64 hidden units, counts of 700 cells and 765 genes "
    "(scanpy's pbmc68k_reduced), 400 epochs. Rivals: scvi's default warm-up over 400 epochs, and a "
    "constant weight of 1."
)


def train(seed: int, plan: dict[str, Any]) -> dict[str, Any]:
    """Train scVI and return KL and weight of every epoch, the latents and the ELBO.

    Args:
        seed: Seed of weights, split and batches.
        plan: Settings of the training plan. One with a `law` is controlled.
    """
    scvi.settings.seed = seed
    cells = load_counts()
    scvi.model.SCVI.setup_anndata(cells)
    model = scvi.model.SCVI(cells, n_hidden=64)
    if "law" in plan:
        model._training_plan_cls = ControlledTrainingPlan
    model.train(EPOCHS, accelerator="cpu", plan_kwargs=plan, enable_progress_bar=False)
    history = {name: frame.iloc[:, 0].to_numpy() for name, frame in model.history.items()}
    return {
        "kl": history["kl_local_train"],
        "weight": history["control/kl_weight" if "law" in plan else "kl_weight"],
        "latents": model.get_latent_representation(),
        "validation_elbo": round(float(model.get_elbo(indices=model.validation_indices)), 2),
    }


def score_latents(latents: np.ndarray, seed: int) -> dict[str, float]:
    """Return how well latents (cells, latents) agree with the given cell types.

    Call it after all trainings: with scanpy's neighbour search in the process, steps of torch took
    ten times as long.
    """
    cells = load_counts()
    cells.obsm["latents"] = latents
    scanpy.pp.neighbors(cells, use_rep="latents", random_state=seed)
    scanpy.tl.leiden(cells, flavor="igraph", n_iterations=-1, directed=False, random_state=seed)
    labels = cells.obs["cell_type"]
    return {
        "silhouette": round(float(silhouette_score(latents, labels)), 4),
        "leiden_ari": round(float(adjusted_rand_score(labels, cells.obs["leiden"])), 4),
        "leiden_clusters": int(cells.obs["leiden"].nunique()),
    }


def main() -> None:
    """Train all models and write `scvi_pbmc.json`."""
    arguments = parse_arguments(__doc__, seeds=2)
    torch.set_num_threads(1)
    plans: dict[str | float, dict[str, Any]] = {
        **RIVALS,
        **{target: {"law": cv.Auto(target)} for target in TARGETS},
    }
    results = {(key, seed): train(seed, plans[key]) for key in plans for seed in arguments.seeds}
    scores = {key: score_latents(result["latents"], key[1]) for key, result in results.items()}
    entries = []
    for target in TARGETS:
        runs = []
        for method, key in {OURS: target, **{name: name for name in RIVALS}}.items():
            for seed in arguments.seeds:
                result = results[key, seed]
                values = result["kl"], result["weight"]
                run = score_run(method, seed, target, *values, every=STEPS_PER_EPOCH)
                run |= {"validation_elbo": result["validation_elbo"], **scores[key, seed]}
                runs.append(run)
        entry = make_entry("scvi-tools", "scvi-tools scanpy", "KL", "nats", target, runs, NOTE)
        entries.append(entry)
    save_entries("scvi_pbmc", entries, arguments.out)
    for (key, seed), score in scores.items():
        print(key, seed, results[key, seed]["validation_elbo"], score)


if __name__ == "__main__":
    main()
