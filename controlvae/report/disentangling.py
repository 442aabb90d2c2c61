"""Disentanglement where ground-truth factors are known: every score there is, of a trained run or of any codes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from controlvae.report.trained import Trained, affordable, some_examples

_BATCH = 2_048
# A GPU takes all examples and 10,000 draws. On a CPU that would take hours, these take seconds; each result says so.
_EXAMPLES, _DRAWS = 20_000, 1_000


def disentanglement(run: Trained, progress: Callable[[float], None] = lambda share: None) -> dict[str, Any]:
    """Every score by name; nothing where no factors are known."""
    factors, names = run.examples.factors, run.examples.factor_names
    if factors is None or run.model.latents < 2:  # a gap is between two latents
        return {}
    indices = some_examples(run, measured_on(len(run.examples), run.device))
    means, log_variances = _encode(run, indices, lambda share: progress(0.5 * share))
    table = factors[indices.cpu().numpy()]
    unordered, rest = run.examples.unordered, lambda share: progress(0.5 + 0.5 * share)
    return scores(means, log_variances, table, names, unordered, rest)


def measured_on(available: int, device: torch.device) -> int:
    """How many of so many examples the scores are worked out from."""
    return affordable(device, available, min(_EXAMPLES, available))


def scores(
    means: Tensor,
    log_variances: Tensor | None,
    table: np.ndarray,
    names: Sequence[str],
    unordered: Sequence[str] = (),
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """Every score of codes, and the classes of their factors, on the device the codes are on.

    Args:
        means, log_variances: (examples, latents), in random order. Where log-variances are not known, scores that need
            them say so in their place.
        table: (examples, factors).
        names: of the factors.
        unordered: those that are no quantities, which the sampled MIG and the continuous SAP leave out.
        progress: told the share that is done.
    """
    varying = [column for column in range(len(names)) if len(np.unique(table[:, column])) > 1]  # in a small subset
    table, names, device = table[:, varying], tuple(names[column] for column in varying), means.device
    if not names:
        return {}
    ordered = [column for column, name in enumerate(names) if name not in unordered]
    results: dict[str, Any] = {
        name: {"skipped": f"{words} needs the log-variances of the codes"}
        for name, words in (("mig_sampled", "sampling"), ("rmig", "RMIG"))
    }
    if log_variances is not None and ordered:
        results["mig_sampled"] = asdict(mig_sampled(
            means, log_variances, table[:, ordered], draws=affordable(device, 10_000, _DRAWS),
            factor_names=[names[column] for column in ordered], device=device,
            progress=lambda share: progress(0.4 * share),
        ))  # fmt: skip
    if log_variances is not None:
        results["rmig"] = asdict(rmig(means, log_variances, table, factor_names=names, device=device))
    progress(0.6)
    results |= _of_means(means, table, names, ordered)
    if not ordered:
        results |= {
            name: {"skipped": "none of the factors is a quantity"} for name in ("mig_sampled", "sap_continuous")
        }
    progress(1.0)
    return results


def _of_means(means: Tensor, table: np.ndarray, names: tuple[str, ...], ordered: list[int]) -> dict[str, Any]:
    """The other scores, with disentanglement_lib's numbers of examples: 12 s on a CPU core, most of it for DCI.

    One that a subset has too few examples or factors for gives the reason in its place.
    """
    # disentanglement_lib takes 10,000 points for a histogram; they are a random choice here, like the rest.
    wanted: dict[str, Callable[[], Any]] = {
        "mig_histogram": lambda: mig_histogram(means[:10_000], table[:10_000], factor_names=names),
        "dci": lambda: dci(means, table, factor_names=names),
        "sap": lambda: sap(means, table, factor_names=names),
        "sap_continuous": lambda: sap(
            means, table[:, ordered], continuous=True, factor_names=[names[column] for column in ordered]
        ),
        "factor_vae_score": lambda: factor_vae_score(means, table),
        "beta_vae_score": lambda: beta_vae_score(means, table),
        "modularity": lambda: modularity(means[:10_000], table[:10_000]),
    }
    found: dict[str, Any] = {}
    for name, score in wanted.items():
        try:
            found[name] = asdict(score())
        except ValueError as error:
            found[name] = {"skipped": str(error)}
    return found


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
