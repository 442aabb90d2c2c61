"""Disentanglement scores of a trained run, or of any codes with known factors."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.distributions import Posterior, gaussian_kl
from controlvae.lab.data.factors import Factors
from controlvae.lab.runs.loaded import LoadedRun, select_examples

Progress = Callable[[float], None]

_BATCH = 2_048
# A GPU scores all examples with 10,000 draws. A CPU would take minutes for that, so it uses fewer.
# Each result records how many examples and draws it used.
_CPU_EXAMPLES = 20_000
_GPU_DRAWS, _CPU_DRAWS = 10_000, 1_000


@dataclass(frozen=True)
class LabelledCodes:
    """Codes of some examples together with their ground-truth factors.

    Attributes:
        means: Posterior means or any other codes, (examples, latents), in random order.
        log_variances: Logarithms of the posterior variances, or None if they are unknown.
        factors: Factors of the same examples; each of them varies.
        thorough: Use as many draws as on a GPU.
    """

    means: Tensor
    log_variances: Tensor | None
    factors: Factors
    thorough: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all factors."""
        return self.factors.names

    @property
    def classes(self) -> np.ndarray:
        """Class numbers of all factors, (examples, factors)."""
        return self.factors.classes

    @property
    def ordered_names(self) -> list[str]:
        """Names of the factors that are quantities."""
        return [name for name in self.names if name not in self.factors.unordered]

    @property
    def ordered_classes(self) -> np.ndarray:
        """Class numbers of the factors that are quantities, (examples, quantities)."""
        return self.classes[:, self._ordered_columns]

    @property
    def ordered_values(self) -> np.ndarray:
        """Values of the factors that are quantities, (examples, quantities)."""
        levels = self.factors.levels
        columns = [
            np.asarray(levels[name])[self.classes[:, column]]
            if (name := self.names[column]) in levels
            else self.classes[:, column]
            for column in self._ordered_columns
        ]
        return np.stack(columns, axis=1)

    @property
    def draws(self) -> int:
        """Number of draws for estimators that sample."""
        return _GPU_DRAWS if self.thorough else _CPU_DRAWS

    @property
    def _ordered_columns(self) -> list[int]:
        return [self.names.index(name) for name in self.ordered_names]


@dataclass(frozen=True)
class DisentanglementScore:
    """One disentanglement score: an entry of metrics.json and the function that computes it.

    Attributes:
        key: Key in metrics.json.
        name: Human-readable name.
        compute: Function of labelled codes and a progress callback that returns a dataclass.
        values: Numbers in the result that tables show, each with its suffix to `name`.
        needs_log_variances: Skip the score where log-variances are unknown.
        needs_quantities: Skip the score where no factor is a quantity.
    """

    key: str
    name: str
    compute: Callable[[LabelledCodes, Progress], Any]
    values: tuple[tuple[str, str], ...] = (("score", ""),)
    needs_log_variances: bool = False
    needs_quantities: bool = False

    def reason_to_skip(self, codes: LabelledCodes) -> str | None:
        """Return why the score cannot be computed for these codes, or None if it can."""
        if self.needs_quantities and not codes.ordered_names:
            return "none of the factors is a quantity"
        if self.needs_log_variances and codes.log_variances is None:
            return f"{self.name} needs the log-variances of the codes"
        return None


def score_run(
    run: LoadedRun,
    scores: Sequence[DisentanglementScore],
    progress: Progress = lambda share: None,
) -> dict[str, Any]:
    """Compute disentanglement scores of a run on the data it was trained on.

    Args:
        run: Trained run whose data has factors.
        scores: Scores to compute.
        progress: Called with the share that is done.

    Returns:
        Each score by its key, and under `ground_truth` the factors and examples they refer to.
    """
    examples = run.examples
    if run.vae.latents < 2:
        reason = "disentanglement is undefined for a single latent"
        return {score.key: {"skipped": reason} for score in scores}
    indices = select_examples(run, scored_count(len(examples), run.thorough))
    means, log_variances = encode(run, indices, lambda share: progress(0.5 * share))
    assert examples.factors is not None
    known = Factors(examples.factor_names, examples.factors, examples.unordered, examples.levels)
    factors = known.select(indices.cpu().numpy())
    kl = gaussian_kl(Posterior(means.double(), log_variances.double())).mean(0).tolist()
    truth = {
        **describe_factors(factors, known),
        "examples": len(indices),
        "split": examples.split,
        "kl_per_latent": kl,
    }
    if (table := getattr(run.experiment.data, "factors", None)) is not None:
        truth["table"] = table
    if not factors.names:
        return {"ground_truth": truth}
    codes = LabelledCodes(means, log_variances, factors, run.thorough)
    results = compute_scores(codes, scores, lambda share: progress(0.5 + 0.5 * share))
    return {"ground_truth": truth, **results}


def describe_factors(factors: Factors, known: Factors) -> dict[str, list[str]]:
    """Return the names of scored factors, of those without an order, and of constant factors."""
    return {
        "names": list(factors.names),
        "unordered": list(factors.unordered),
        "constant": [name for name in known.names if name not in factors.names],
    }


def scored_count(available: int, thorough: bool) -> int:
    """Return how many of the available examples are scored."""
    return available if thorough else min(_CPU_EXAMPLES, available)


def compute_scores(
    codes: LabelledCodes,
    scores: Sequence[DisentanglementScore],
    progress: Progress = lambda share: None,
) -> dict[str, Any]:
    """Compute disentanglement scores of codes, on the device of the codes.

    Args:
        codes: Codes and factors.
        scores: Scores to compute.
        progress: Called with the share that is done.

    Returns:
        The result of each score by its key. A score that cannot be computed gives its reason under
        `skipped`.
    """
    results: dict[str, Any] = {}
    for done, score in enumerate(scores):
        if (reason := score.reason_to_skip(codes)) is not None:
            results[score.key] = {"skipped": reason}
        else:
            scaled = lambda share, n=done: progress((n + share) / len(scores))  # noqa: E731
            results[score.key] = _compute_or_explain(score, codes, scaled)
        progress((done + 1) / len(scores))
    return results


def _compute_or_explain(
    score: DisentanglementScore, codes: LabelledCodes, progress: Progress
) -> dict[str, Any]:
    """Return a score, or the reason if there are too few examples or the codes are invalid."""
    try:
        return asdict(score.compute(codes, progress))
    except ValueError as error:
        return {"skipped": str(error)}


@torch.no_grad()
def encode(
    run: LoadedRun, indices: Tensor, progress: Progress = lambda share: None
) -> tuple[Tensor, Tensor]:
    """Return means and log-variances of q(z|x), (examples, latents) each, on the device.

    Args:
        run: Run to encode with.
        indices: Indices of the examples.
        progress: Called with the share that is done.
    """
    means, log_variances = [], []
    for chosen in indices.split(_BATCH):
        posterior = run.vae.encode(run.examples.batch(chosen))
        means.append(posterior.mean.float())
        log_variances.append(posterior.log_variance.float())
        progress(len(means) * _BATCH / len(indices))
    return torch.cat(means), torch.cat(log_variances)
