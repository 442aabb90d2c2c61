"""Disentanglement where ground-truth factors are known: every score there is, of a trained run or of any codes."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.lab.data.factors import Factors
from controlvae.lab.runs.loaded import LoadedRun, some_examples
from controlvae.metrics import beta_vae_score, factor_vae_score, mig_histogram, mig_sampled
from controlvae.metrics.disentanglement import dci, modularity, rmig, sap

_BATCH = 2_048
# A GPU takes all examples and 10,000 draws. On a CPU that would take minutes, these take seconds; each result says so.
_EXAMPLES, _DRAWS = 20_000, 1_000
_SCORES = (
    "mig_sampled",
    "rmig",
    "mig_histogram",
    "dci",
    "sap",
    "sap_continuous",
    "factor_vae_score",
    "beta_vae_score",
    "modularity",
)


def disentanglement(
    run: LoadedRun, progress: Callable[[float], None] = lambda share: None
) -> dict[str, Any]:
    """Every score by name, and under `ground_truth` what they are of; nothing where no factors are known."""
    examples = run.examples
    if examples.factors is None:
        return {}
    if run.model.latents < 2:
        return {
            name: {"skipped": "a single latent leaves nothing to disentangle"} for name in _SCORES
        }
    indices = some_examples(run, measured_on(len(run.examples), run.thorough))
    means, log_variances = _encode(run, indices, lambda share: progress(0.5 * share))
    known = Factors(examples.factor_names, examples.factors, examples.unordered, examples.levels)
    factors = known.among(indices.cpu().numpy())
    kl = gaussian_kl(Posterior(means.double(), log_variances.double())).mean(0).tolist()
    truth = {
        **ground_truth(factors, known),
        "examples": len(indices),
        "split": examples.split,
        "kl_per_latent": kl,
    }
    if (table := getattr(run.experiment.data, "factors", None)) is not None:
        truth["table"] = table
    if not factors.names:
        return {"ground_truth": truth}
    told = lambda share: progress(0.5 + 0.5 * share)  # noqa: E731
    return {"ground_truth": truth, **scores(means, log_variances, factors, told, run.thorough)}


def ground_truth(factors: Factors, known: Factors) -> dict[str, list[str]]:
    """Which factors scores are of, which of those are no quantities, and which of all that are known do not vary."""
    return {
        "names": list(factors.names),
        "unordered": list(factors.unordered),
        "constant": [name for name in known.names if name not in factors.names],
    }


def measured_on(available: int, thorough: bool) -> int:
    """How many of so many examples the scores are worked out from."""
    return available if thorough else min(_EXAMPLES, available)


def scores(
    means: Tensor,
    log_variances: Tensor | None,
    factors: Factors,
    progress: Callable[[float], None] = lambda share: None,
    thorough: bool = False,
) -> dict[str, Any]:
    """Every score of codes, on the device the codes are on.

    Args:
        means, log_variances: (examples, latents), in random order. Where log-variances are not known, scores that need
            them say so in their place.
        factors: of these examples, each of which varies. Those that are no quantities are left out of the sampled MIG
            and of the continuous SAP.
        progress: told the share that is done.
        thorough: with as many draws as a GPU takes.
    """
    device, names, table, levels = means.device, factors.names, factors.classes, factors.levels
    ordered = [column for column, name in enumerate(names) if name not in factors.unordered]
    quantities = [names[column] for column in ordered]
    values = [
        table[:, column]
        if names[column] not in levels
        else np.asarray(levels[names[column]])[table[:, column]]
        for column in ordered
    ]
    sampled: dict[str, Callable[[], Any]] = {
        "mig_sampled": lambda: mig_sampled(
            means,
            log_variances,
            table[:, ordered],
            draws=10_000 if thorough else _DRAWS,
            factor_names=quantities,
            device=device,
            progress=lambda share: progress(0.4 * share),
        ),
        "rmig": lambda: rmig(means, log_variances, table, factor_names=names, device=device),
    }
    # The others with disentanglement_lib's numbers of examples: 12 s on a CPU core, most of it for DCI. It takes 10,000
    # points for a histogram; they are a random choice here, like the rest.
    of_means: dict[str, Callable[[], Any]] = {
        "mig_histogram": lambda: mig_histogram(means[:10_000], table[:10_000], factor_names=names),
        "dci": lambda: dci(means, table, factor_names=names),
        "sap": lambda: sap(means, table, factor_names=names),
        "sap_continuous": lambda: sap(
            means, np.stack(values, axis=1), continuous=True, factor_names=quantities
        ),
        "factor_vae_score": lambda: factor_vae_score(means, table),
        "beta_vae_score": lambda: beta_vae_score(means, table),
        "modularity": lambda: modularity(means[:10_000], table[:10_000]),
    }
    left_out = {}
    if log_variances is None:
        left_out = {
            "mig_sampled": "sampling needs the log-variances of the codes",
            "rmig": "RMIG needs the log-variances of the codes",
        }
    if not ordered:
        left_out |= dict.fromkeys(
            ("mig_sampled", "sap_continuous"), "none of the factors is a quantity"
        )
    results: dict[str, Any] = {}
    for name, score in (sampled | of_means).items():
        results[name] = {"skipped": left_out[name]} if name in left_out else _measured(score)
        progress(0.4 + 0.6 * len(results) / len(_SCORES))
    return results


def _measured(score: Callable[[], Any]) -> dict[str, Any]:
    """A score, or the reason where there are too few examples or factors for it, or codes it cannot take."""
    try:
        return asdict(score())
    except ValueError as error:
        return {"skipped": str(error)}


@torch.no_grad()
def _encode(
    run: LoadedRun, indices: Tensor, progress: Callable[[float], None]
) -> tuple[Tensor, Tensor]:
    """Means and log-variances of q(z|x), (examples, latents) each, on the device."""
    means, log_variances = [], []
    for chosen in indices.split(_BATCH):
        posterior = run.model.encode(run.examples.batch(chosen))
        means.append(posterior.mean.float())
        log_variances.append(posterior.log_variance.float())
        progress(len(means) * _BATCH / len(indices))
    return torch.cat(means), torch.cat(log_variances)
