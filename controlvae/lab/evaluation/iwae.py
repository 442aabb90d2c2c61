"""The importance-weighted bound of a run: tighter than the ELBO, for pictures, sentences and responses alike."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from controlvae.distributions import Posterior
from controlvae.lab.data.dataset import stream_key
from controlvae.lab.models.reconstruction import reconstruction_loss
from controlvae.lab.runs.loaded import LoadedRun, some_examples
from controlvae.metrics import iwae

IMPORTANCE_SAMPLES = 50
_BATCH = 64
_EXAMPLES = 1_000, 64  # on a GPU, and elsewhere


@torch.no_grad()
def importance_weighted(
    run: LoadedRun, samples: int, progress: Callable[[float], None], most: int | None = None
) -> dict[str, Any]:
    """IWAE-k of at most so many examples, and beside it the ELBO of the very same samples: what k buys."""
    count = min(run.affords(*_EXAMPLES), most or run.available, run.available)
    noise = torch.Generator().manual_seed(stream_key(0, 17))
    bound, elbo, done = 0.0, 0.0, 0
    for chosen in some_examples(run, count).split(_BATCH):
        x = run.examples.batch(chosen)
        weights = log_weights(run, x, run.model.encode(x), samples, noise)  # (samples, n)
        bound += iwae(weights).sum().item()
        elbo += weights.mean(0).sum().item()
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


def log_weights(
    run: LoadedRun, x: Any, posterior: Posterior, samples: int, noise: torch.Generator
) -> Tensor:
    """log p(x|z) + log p(z) - log q(z|x) for z from q(z|x): (samples, n), float64. The 2π of p and q cancel."""
    z = posterior.sample(
        torch.randn(samples, *posterior.mean.shape, generator=noise).to(run.device)
    )
    prior = posterior.prior or Posterior(
        torch.zeros_like(posterior.mean), torch.zeros_like(posterior.mean)
    )
    error = reconstruction_loss(run.experiment.objective.likelihood)
    likelihood = torch.stack([error(run.model, one, x, posterior.given) for one in z])
    return (
        prior.log_density(z) - posterior.log_density(z)
    ).cpu().double() - likelihood.cpu().double()
