"""Importance-weighted bound (IWAE) of a run over images, sentences or dialogs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from controlvae.distributions import Posterior
from controlvae.lab.data.batch_order import stream_key
from controlvae.lab.models.reconstruction import reconstruction_loss
from controlvae.lab.runs.loaded import LoadedRun, select_examples
from controlvae.metrics import iwae

IMPORTANCE_SAMPLES = 50
_BATCH = 64
_EXAMPLES = 1_000, 64  # on a GPU and elsewhere


@torch.no_grad()
def importance_weighted_bound(
    run: LoadedRun, samples: int, progress: Callable[[float], None], most: int | None = None
) -> dict[str, Any]:
    """Measure IWAE-k, and the ELBO of the same samples to show the effect of k.

    Args:
        run: Trained run over the data to measure.
        samples: Importance samples per example, k.
        progress: Called with the share that is done.
        most: Maximal number of examples.

    Returns:
        The entry `iwae` of metrics.json, in nats per example.
    """
    count = min(run.example_budget(*_EXAMPLES), most or run.available, run.available)
    noise = torch.Generator().manual_seed(stream_key(0, 17))
    bound, elbo, done = 0.0, 0.0, 0
    for chosen in select_examples(run, count).split(_BATCH):
        x = run.examples.batch(chosen)
        log_weights = importance_log_weights(run, x, run.vae.encode(x), samples, noise)
        bound += iwae(log_weights).sum().item()
        elbo += log_weights.mean(0).sum().item()
        done += len(x)
        progress(done / count)
    squared = run.experiment.objective.likelihood == "squared-error"
    constant = ", the Gaussian's constant left out, as in the ELBO" if squared else ""
    return {
        "bound": bound / count,
        "elbo_of_the_same": elbo / count,
        "k": samples,
        "examples": count,
        "split": run.examples.split,
        "estimator": f"IWAE-{samples} (Burda et al. 2016), nats per example{constant}",
    }


def importance_log_weights(
    run: LoadedRun, x: Any, posterior: Posterior, samples: int, noise: torch.Generator
) -> Tensor:
    """Return log p(x|z) + log p(z) - log q(z|x) for z drawn from q(z|x).

    Args:
        run: Trained run.
        x: Batch of n examples.
        posterior: q(z|x) of the batch.
        samples: Draws of z per example.
        noise: Generator of the draws.

    Returns:
        Log weights in float64, (samples, n). The constants 2π of p and q cancel.
    """
    shape = (samples, *posterior.mean.shape)
    z = posterior.sample(torch.randn(shape, generator=noise).to(run.device))
    standard = torch.zeros_like(posterior.mean)
    prior = posterior.prior or Posterior(standard, standard)
    error = reconstruction_loss(run.experiment.objective.likelihood)
    negative_log_likelihood = torch.stack([error(run.vae, one, x, posterior.context) for one in z])
    log_ratio = prior.log_density(z) - posterior.log_density(z)
    return log_ratio.cpu().double() - negative_log_likelihood.cpu().double()
