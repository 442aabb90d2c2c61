"""ELBO of a run, its terms, and how much information the latents carry."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from controlvae.errors import UserError
from controlvae.lab.config import describe_likelihood
from controlvae.lab.custom.adapter import CustomVAE, group_latents
from controlvae.lab.custom.examples import UserExamples
from controlvae.lab.custom.measure import measure_losses
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.models.dataset_elbo import measure_elbo
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import LoadedRun, pixel_variance, select_examples
from controlvae.metrics import (
    active_units,
    gaussian_total_correlation,
    mutual_information,
    step_response,
)

#: Examples for the mutual information. Its cost grows with the square of their number.
MUTUAL_INFORMATION_EXAMPLES = 4_096
# With few examples, several draws of z per example keep the sampling noise small.
_ENOUGH_DRAWS, _MAX_DRAWS_PER_EXAMPLE = 5_000, 20


def elbo_metrics(
    run: LoadedRun, examples: int, progress: Callable[[float], None] = lambda share: None
) -> dict[str, Any]:
    """Measure the ELBO, its terms and the use of the latents.

    Args:
        run: Trained run over the data to measure.
        examples: Number of examples; all of them if there are fewer.
        progress: Called with the share that is done.

    Returns:
        Entries of metrics.json, in nats per example.
    """
    count = min(examples, run.available)
    if isinstance(run.vae, CustomVAE) and not run.vae.has_gaussian_posterior:
        return _mean_losses(run, count, progress)
    noise = torch.Generator().manual_seed(stream_key(0, 11))
    chosen = select_examples(run, count)
    if len(chosen) < 2:
        raise UserError(
            f"need at least 2 examples to evaluate {run.folder.path}, got {len(chosen)} "
            f"({run.examples.split})"
        )
    draws = max(1, min(_MAX_DRAWS_PER_EXAMPLE, _ENOUGH_DRAWS // len(chosen)))
    # Keep the random order: other metrics use the first of these examples.
    batches = (run.examples.batch(few) for few in chosen.split(run.examples.eval_batch_size))
    report = lambda done: progress(done / count)  # noqa: E731
    likelihood = run.experiment.objective.likelihood
    bound = measure_elbo(run.vae, likelihood, batches, noise, report, draws=draws)
    information = mutual_information(
        bound.means[:MUTUAL_INFORMATION_EXAMPLES],
        bound.log_variances[:MUTUAL_INFORMATION_EXAMPLES],
    )
    return {
        "examples": len(chosen),
        "draws": draws,  # of z, per example
        "available": run.available,
        "split": run.examples.split,
        "likelihood": describe_likelihood(likelihood),
        **pixel_variance(run),
        "elbo": bound.elbo,
        "reconstruction": bound.reconstruction,
        "kl": bound.kl,
        "kl_per_latent": _kl_per_latent(run, bound.kl_per_latent),
        "active_units": active_units(bound.means),
        **_total_correlation(bound.means, bound.log_variances),
        "mutual_information": information._asdict(),
    }


def _total_correlation(means: Tensor, log_variances: Tensor) -> dict[str, float]:
    """Return the total correlation of one z per example, if there are enough of them."""
    if means.shape[1] < 2 or len(means) < means.shape[1] + 3:
        return {}
    generator = torch.Generator().manual_seed(stream_key(0, 23))
    noise = torch.randn(means.shape, generator=generator, dtype=torch.float64)
    z = means.cpu().double() + (log_variances.cpu().double() / 2).exp() * noise
    return {"total_correlation": gaussian_total_correlation(z)}


def _mean_losses(run: LoadedRun, count: int, progress: Callable[[float], None]) -> dict[str, Any]:
    """Measure the losses of a user-supplied model that shows no Gaussian posterior."""
    assert isinstance(run.examples, UserExamples)
    chosen = select_examples(run, count)
    found = measure_losses(run.vae, run.examples, chosen, progress)
    return {
        "examples": len(chosen),
        "draws": 1,
        "available": run.available,
        "split": run.examples.split,
        "likelihood": describe_likelihood(run.experiment.objective.likelihood),
        "elbo": found.elbo,
        "reconstruction": found.reconstruction,
        "kl": found.kl,
        "kl_per_latent": found.kl_per_latent,
    }


def _kl_per_latent(run: LoadedRun, kl: Tensor) -> list[float]:
    """Return the KL of each latent, or of each channel of a spatial code."""
    if isinstance(run.vae, CustomVAE):
        return group_latents(kl.view(1, *run.vae.latent_shape))[0].tolist()
    return kl.tolist()


def training_elbo_metrics(run: LoadedRun, examples: int) -> dict[str, Any]:
    """Measure the ELBO on the training set, to show next to that of the test set."""
    bound = elbo_metrics(run, examples)
    return {name: bound[name] for name in ("examples", "split", "elbo", "reconstruction", "kl")}


def measure_step_response(folder: RunFolder) -> dict[str, Any] | None:
    """Return the step response of the controlled quantity, or None for an open-loop run."""
    # Distances are shares of the set point, so records without one are skipped.
    records = [record for record in folder.records() if record["target"]]
    if not records:
        return None
    controlled = folder.experiment().controlled_quantity
    # The first record averages many steps and may already be past the set point. An untrained
    # model starts below it in the term its weight multiplies, and above it in the reconstruction.
    start = None if controlled == "reconstruction" else 0.0
    trace, target, steps = (
        [record[name] for record in records] for name in (controlled, "target", "step")
    )
    response = asdict(step_response(trace, target, steps=steps, start=start))
    return {**response, "of": f"{controlled} on the training batches, as shares of the set point"}
