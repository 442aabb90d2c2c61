"""Disentanglement of a trained run, where the data has ground-truth factors: every score there is."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.experiments import Shapes2D
from controlvae.metrics import (
    beta_vae_score,
    dci,
    factor_vae_score,
    mig_histogram,
    mig_sampled,
    modularity,
    rmig,
    sap,
)
from controlvae.report.trained import Trained, some_examples

_BATCH = 2_048
# On a CPU the whole set would take hours; these take seconds. Each result says how many it used.
_ON_A_CPU = {"examples": 20_000, "draws": 1_000}
# The paper's MIG leaves the shape out (section 4.3); its RMIG takes all five.
_NOT_IN_MIG = ("shape",)


def disentanglement(run: Trained, progress: Callable[[float], None] = lambda share: None) -> dict[str, Any]:
    """Every score by name; nothing where no factors are known."""
    factors, names = run.examples.factors, run.examples.factor_names
    if factors is None or run.model.latents < 2:  # a gap is between two latents
        return {}
    full = run.device.type == "cuda"
    count = len(run.examples) if full else min(_ON_A_CPU["examples"], len(run.examples))
    indices = some_examples(run, count)
    means, log_variances = _encode(run, indices, lambda share: progress(0.5 * share))
    table = factors[indices.cpu().numpy()]
    varying = [column for column in range(len(names)) if len(np.unique(table[:, column])) > 1]  # in a small subset
    table, names = table[:, varying], tuple(names[column] for column in varying)
    left_out = _NOT_IN_MIG if isinstance(run.experiment.data, Shapes2D) else ()
    kept = [column for column, name in enumerate(names) if name not in left_out]
    if not kept:
        return {}
    results = {
        "mig_sampled": mig_sampled(
            means, log_variances, table[:, kept], draws=10_000 if full else _ON_A_CPU["draws"],
            factor_names=[names[column] for column in kept], device=run.device,
            progress=lambda share: progress(0.5 + 0.2 * share),
        ),
        # disentanglement_lib takes 10,000 points; they are a random choice here, like the rest.
        "mig_histogram": mig_histogram(means[:10_000], table[:10_000], factor_names=names),
        "rmig": rmig(means, log_variances, table, factor_names=names, device=run.device),
    }  # fmt: skip
    progress(0.8)
    scores = _scores(means, table, names, kept)
    progress(1.0)
    return {name: asdict(result) for name, result in results.items()} | scores


def _scores(means: Tensor, table: np.ndarray, names: tuple[str, ...], ordered: list[int]) -> dict[str, Any]:
    """The other scores, with disentanglement_lib's numbers of examples: 12 s on a CPU core, most of it for DCI.

    One that a subset has too few examples or factors for gives the reason in its place.
    """
    wanted: dict[str, Callable[[], Any]] = {
        "dci": lambda: dci(means, table, factor_names=names),
        "sap": lambda: sap(means, table, factor_names=names),
        "sap_continuous": lambda: sap(  # a shape has no order
            means, table[:, ordered], continuous=True, factor_names=[names[column] for column in ordered]
        ),
        "factor_vae_score": lambda: factor_vae_score(means, table),
        "beta_vae_score": lambda: beta_vae_score(means, table),
        "modularity": lambda: modularity(means[:10_000], table[:10_000]),
    }
    scores: dict[str, Any] = {}
    for name, score in wanted.items():
        try:
            scores[name] = asdict(score())
        except ValueError as error:
            scores[name] = {"skipped": str(error)}
    return scores


@torch.no_grad()
def _encode(run: Trained, indices: Tensor, progress: Callable[[float], None]) -> tuple[Tensor, Tensor]:
    """Means and log-variances of q(z|x), (examples, latents) each, on the device."""
    means, log_variances = [], []
    for chosen in indices.split(_BATCH):
        posterior = run.model.encode(run.examples.batch(chosen))
        means.append(posterior.mean.float())
        log_variances.append(posterior.log_variance.float())
        progress(len(means) * _BATCH / len(indices))
    return torch.cat(means), torch.cat(log_variances)
