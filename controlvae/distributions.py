"""Gaussian posteriors, their KL divergence, and likelihoods of images, in nats per example."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Posterior", "bernoulli", "gaussian", "gaussian_kl", "squared_error"]


class Posterior(NamedTuple):
    r"""Approximate posterior :math:`q(z|x) = N(\mu, \sigma^2)` with independent latents.

    Kingma & Welling, *Auto-Encoding Variational Bayes*, 2014.

    >>> posterior = Posterior.from_encoder_output(torch.zeros(8, 20))
    >>> posterior.mean.shape
    torch.Size([8, 10])
    """

    mean: Tensor  # μ, (..., batch, latents)
    log_variance: Tensor  # log σ², (..., batch, latents)
    prior: "Posterior | None" = None  # p(z), None for N(0, I)
    context: Tensor | None = None  # further input of the decoder next to z, (batch, size)

    @classmethod
    def from_encoder_output(cls, encoded: Tensor) -> "Posterior":
        """Split an encoder's output (..., 2 · latents) into means and log-variances.

        The result has at least float32 precision, because a KL is a small difference.
        """
        dtype = torch.promote_types(encoded.dtype, torch.float32)
        mean, log_variance = encoded.to(dtype).chunk(2, -1)
        return cls(mean, log_variance)

    @property
    def relative_to_prior(self) -> "Posterior":
        """The posterior in coordinates in which the prior is N(0, I).

        The origin is the prior's mean and the unit its standard deviation.
        """
        if self.prior is None:
            return self
        mean = (self.mean - self.prior.mean) * torch.exp(-0.5 * self.prior.log_variance)
        return Posterior(mean, self.log_variance - self.prior.log_variance)

    def log_density(self, z: Tensor) -> Tensor:
        r"""Return log q(z) without its constant :math:`-\tfrac{n}{2} \log 2\pi`: (..., batch)."""
        squared = (z - self.mean).square() * torch.exp(-self.log_variance)
        return -0.5 * (squared + self.log_variance).sum(-1)

    def sample(self, noise: Tensor) -> Tensor:
        r"""Return :math:`z = \mu + \sigma\,\varepsilon` for noise ε from N(0, I)."""
        return self.mean + torch.exp(0.5 * self.log_variance) * noise


def gaussian_kl(posterior: Posterior) -> Tensor:
    r"""Return the KL divergence from the prior for each latent: (..., batch, latents).

    .. math::  \mathrm{KL}(N(\mu, \sigma^2)\,\|\,N(0, 1))
               = (\mu^2 + \sigma^2 - 1 - \log \sigma^2) / 2

    A prior other than N(0, I) sets the origin and the unit of μ and σ. Sum over the last dimension
    for nats per example.

    >>> gaussian_kl(Posterior(torch.tensor([[2.0]]), torch.tensor([[0.0]])))
    tensor([[2.]])
    """
    mean, log_variance, *_ = posterior.relative_to_prior
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    r"""Return -log p(x|z) of binary pixels: the cross-entropy, summed over each image.

    .. math::  -\sum_i x_i \log p_i + (1 - x_i) \log(1 - p_i), \qquad p = \mathrm{sigmoid}(logits)

    Args:
        logits: Decoder output, (..., batch, channels, height, width).
        x: Images in [0, 1], of the same shape.

    Returns:
        Nats per example, (..., batch).

    >>> bernoulli(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))  # four bits
    tensor([2.7726])
    """
    return F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(-3).sum(-1)


def squared_error(logits: Tensor, x: Tensor) -> Tensor:
    r"""Return the squared error of each image, :math:`\sum_i (\mathrm{sigmoid}(logits)_i - x_i)^2`.

    This is the image loss of the released code. It is -log p(x|z) of a Gaussian of variance 1/2, up
    to a constant.

    Args:
        logits: Decoder output, (..., batch, channels, height, width).
        x: Images in [0, 1], of the same shape.

    Returns:
        Nats per example, (..., batch).
    """
    return (torch.sigmoid(logits) - x).square().flatten(-3).sum(-1)


def gaussian(logits: Tensor, x: Tensor, log_variance: Tensor) -> Tensor:
    r"""Return -log N(x; sigmoid(logits), σ²) of each image.

    .. math::  \sum_i \frac{(x_i - \mu_i)^2}{2\sigma^2} + \frac{D}{2} \log 2\pi\sigma^2

    Args:
        logits: Decoder output, (..., batch, channels, height, width).
        x: Images in [0, 1], of the same shape.
        log_variance: log σ², one value for each model, (...).

    Returns:
        Nats per example, (..., batch). They may be negative, because it is a density.
    """
    log_variance, dimensions = log_variance.unsqueeze(-1), math.prod(x.shape[-3:])
    constant = dimensions * (log_variance + math.log(2 * math.pi))
    return 0.5 * (squared_error(logits, x) * torch.exp(-log_variance) + constant)
