"""The terms of the evidence lower bound, in nats per example. They are returned, never weighed: training does that."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from controlvae.models import Model, Posterior


class Terms(NamedTuple):
    """Averages over the batch; reconstruction is summed over pixels, KL over latents."""

    reconstruction: Tensor  # ()  -log p(x|z)
    kl: Tensor  # ()  KL(q(z|x) || N(0, I))
    kl_per_latent: Tensor  # (latents,)


def bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    """-log p(x|z) of binary pixels: the cross-entropy, summed over each example's own dimensions. (batch,)"""
    return F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)


def gaussian_kl(posterior: Posterior) -> Tensor:
    r"""KL(N(μ, σ²) || N(0, 1)) of each latent: :math:`(\mu^2 + \sigma^2 - 1 - \log \sigma^2) / 2`. (batch, latents)"""
    mean, log_variance = posterior
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def elbo_terms(model: Model, x: Tensor, noise: Tensor) -> Terms:
    """Both terms of the ELBO with one sample of z per example: ELBO = -(reconstruction + kl)."""
    logits, posterior = model(x, noise)
    kl_per_latent = gaussian_kl(posterior).mean(0)
    return Terms(bernoulli(logits, x).mean(), kl_per_latent.sum(), kl_per_latent)
