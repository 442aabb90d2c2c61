"""Gaussian posteriors, their KL divergence, and the likelihoods of images, in nats per example."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Posterior(NamedTuple):
    """q(z|x), a Gaussian with independent latents."""

    mean: Tensor  # (batch, latents)
    log_variance: Tensor  # (batch, latents)
    prior: "Posterior | None" = None  # p(z), where it is not N(0, I)
    given: Tensor | None = None  # what is known besides z, for the decoder too: (batch, size)

    @classmethod
    def of(cls, encoded: Tensor) -> "Posterior":
        """From means beside log-variances, (..., 2 latents); in float32 at least, as a KL is a small difference."""
        mean, log_variance = encoded.to(torch.promote_types(encoded.dtype, torch.float32)).chunk(
            2, -1
        )
        return cls(mean, log_variance)

    @property
    def standard(self) -> "Posterior":
        """The same measured from the prior, in its standard deviations: as if the prior were N(0, I)."""
        if self.prior is None:
            return self
        mean = (self.mean - self.prior.mean) * torch.exp(-0.5 * self.prior.log_variance)
        return Posterior(mean, self.log_variance - self.prior.log_variance)

    def log_density(self, z: Tensor) -> Tensor:
        """log q(z) but for its 2π, (..., batch)."""
        return -0.5 * (
            (z - self.mean).square() * torch.exp(-self.log_variance) + self.log_variance
        ).sum(-1)

    def sample(self, noise: Tensor) -> Tensor:
        """z = mean + standard deviation x noise, with noise from N(0, I)."""
        return self.mean + torch.exp(0.5 * self.log_variance) * noise


def gaussian_kl(posterior: Posterior) -> Tensor:
    r"""KL(N(μ, σ²) || p(z)) of each latent, (batch, latents).

    For p = N(0, 1) it is :math:`(\mu^2 + \sigma^2 - 1 - \log \sigma^2) / 2`; a prior of its own sets the origin and the
    unit.
    """
    mean, log_variance, *_ = posterior.standard
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    """-log p(x|z) of binary pixels: the cross-entropy, summed over each picture. (..., batch)"""
    return F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(-3).sum(-1)


def squared_error(logits: Tensor, x: Tensor) -> Tensor:
    """Σ (sigmoid(logits) - x)² of each picture: the released image loss, a Gaussian of variance 1/2. (..., batch)"""
    return (torch.sigmoid(logits) - x).square().flatten(-3).sum(-1)


def gaussian(logits: Tensor, x: Tensor, log_variance: Tensor) -> Tensor:
    r"""-log N(x; sigmoid(logits), σ²) of each picture: :math:`\sum (x - \mu)^2 / 2\sigma^2 + D/2 \log 2\pi\sigma^2`.

    Args:
        logits: (..., batch, *picture), as x.
        x: pixels in [0, 1].
        log_variance: log σ², one for each model, (...).
    """
    spread, dimensions = log_variance.unsqueeze(-1), math.prod(x.shape[-3:])
    constant = dimensions * (spread + math.log(2 * math.pi))
    return 0.5 * (squared_error(logits, x) * torch.exp(-spread) + constant)
