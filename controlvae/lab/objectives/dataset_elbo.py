"""The ELBO of a model over many examples: what validation looks at and evaluation reports."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae.distributions import gaussian_kl
from controlvae.lab.config.objectives import ObjectiveSettings
from controlvae.lab.models import Model
from controlvae.lab.objectives.elbo import reconstruction_of


class Bound(NamedTuple):
    """Means over the examples, in nats; on the host, in float64."""

    reconstruction: float
    kl_per_latent: Tensor  # (latents,)
    means: Tensor  # of q(z|x), measured from the prior, one row per example
    log_variances: Tensor

    @property
    def kl(self) -> float:
        return self.kl_per_latent.sum().item()

    @property
    def elbo(self) -> float:
        return -(self.reconstruction + self.kl)


@torch.no_grad()
def measure_bound(
    model: Model,
    objective: ObjectiveSettings,
    batches: Iterable[Any],
    noise: torch.Generator,
    progress: Callable[[int], None] = lambda done: None,
    *,
    draws: int = 1,
) -> Bound:
    """With so many samples of z per example, from a generator on the host; `progress` is told how many are done."""
    error, posteriors = reconstruction_of(objective), []
    reconstruction, kl = 0.0, torch.zeros(model.latents, dtype=torch.float64)
    for x in batches:
        posterior = model.encode(x)
        for _ in range(draws):
            z = posterior.sample(torch.randn(len(x), model.latents, generator=noise).to(x.device))
            reconstruction += (
                error(model, z, x, posterior.given).cpu().double().sum().item() / draws
            )
        kl += gaussian_kl(posterior).cpu().double().sum(0)
        posteriors.append(torch.stack(posterior.standard[:2]).cpu())
        progress(sum(each.shape[1] for each in posteriors))
    means, log_variances = torch.cat(posteriors, dim=1)
    return Bound(reconstruction / len(means), kl / len(means), means, log_variances)
