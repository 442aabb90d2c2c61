"""ELBO of a model averaged over a data set, for validation and evaluation."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae.distributions import gaussian_kl
from controlvae.lab.models.build import Model
from controlvae.lab.models.reconstruction import reconstruction_loss
from controlvae.lab.objectives.likelihood import Likelihood


class DatasetElbo(NamedTuple):
    """Means over the examples in nats, in float64 on the host."""

    reconstruction: float
    kl_per_latent: Tensor  # (latents,)
    means: Tensor  # of q(z|x) in units of the prior, (examples, latents)
    log_variances: Tensor  # of q(z|x) in units of the prior, (examples, latents)

    @property
    def kl(self) -> float:
        """KL divergence from the prior, summed over latents."""
        return self.kl_per_latent.sum().item()

    @property
    def elbo(self) -> float:
        """Evidence lower bound."""
        return -(self.reconstruction + self.kl)


@torch.no_grad()
def measure_elbo(
    model: Model,
    likelihood: Likelihood,
    batches: Iterable[Any],
    noise: torch.Generator,
    progress: Callable[[int], None] = lambda done: None,
    *,
    draws: int = 1,
) -> DatasetElbo:
    """Return the ELBO of a model, averaged over all examples.

    Args:
        model: Model in evaluation mode.
        likelihood: Likelihood of the reconstruction term.
        batches: Batches of examples on the model's device.
        noise: Generator on the host that draws the noise of z.
        progress: Called with the number of examples done after each batch.
        draws: Samples of z per example.
    """
    loss, posteriors = reconstruction_loss(likelihood), []
    reconstruction, kl = 0.0, torch.zeros(model.latents, dtype=torch.float64)
    for x in batches:
        posterior = model.encode(x)
        for _ in range(draws):
            z = posterior.sample(torch.randn(len(x), model.latents, generator=noise).to(x.device))
            losses = loss(model, z, x, posterior.context)
            reconstruction += losses.cpu().double().sum().item() / draws
        kl += gaussian_kl(posterior).cpu().double().sum(0)
        posteriors.append(torch.stack(posterior.relative_to_prior[:2]).cpu())
        progress(sum(each.shape[1] for each in posteriors))
    means, log_variances = torch.cat(posteriors, dim=1)
    return DatasetElbo(reconstruction / len(means), kl / len(means), means, log_variances)
