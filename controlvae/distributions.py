"""Gaussian posteriors, their KL divergence in units of a rate, and likelihoods of images."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "Posterior",
    "bernoulli",
    "bits_per_dimension",
    "bits_per_pixel",
    "gaussian",
    "gaussian_kl",
    "nats_per_position",
    "nats_per_token",
    "squared_error",
]

Reduction = Literal["none", "example", "mean"]
Rate = TypeVar("Rate", float, Tensor)


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


def gaussian_kl(posterior: Posterior, reduction: Reduction = "none") -> Tensor:
    r"""Return the KL divergence from the prior in nats, for latents of any number of axes.

    .. math::  \mathrm{KL}(N(\mu, \sigma^2)\,\|\,N(0, 1))
               = (\mu^2 + \sigma^2 - 1 - \log \sigma^2) / 2

    A prior other than N(0, I) sets the origin and the unit of μ and σ.

    Args:
        posterior: Posterior whose tensors have the batch as their first axis. Vectors are
            (batch, latents), audio (batch, channels, frames), images (batch, channels, height,
            width), video (batch, channels, frames, height, width).
        reduction: `"none"` returns each latent's KL. `"example"` sums over all axes after the
            first, in at least float32, and returns (batch,). `"mean"` averages those sums over the
            batch: the nats per example that a controller measures.

    >>> gaussian_kl(Posterior(torch.tensor([[2.0]]), torch.tensor([[0.0]])))
    tensor([[2.]])
    >>> video = Posterior(torch.ones(8, 4, 3, 2, 2), torch.zeros(8, 4, 3, 2, 2))
    >>> gaussian_kl(video, "mean")  # half a nat for each of 48 latents
    tensor(24.)
    """
    if reduction not in ("none", "example", "mean"):
        raise ValueError(f"reduction must be 'none', 'example' or 'mean', got {reduction!r}")
    mean, log_variance, *_ = posterior.relative_to_prior
    if reduction != "none":  # sums of many latents lose digits in half precision
        dtype = torch.promote_types(mean.dtype, torch.float32)
        mean, log_variance = mean.to(dtype), log_variance.to(dtype)
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
    if reduction == "none":
        return kl
    per_example = kl.flatten(1).sum(1) if kl.dim() > 1 else kl
    return per_example if reduction == "example" else per_example.mean()


def nats_per_position(
    nats: Rate, latents: Tensor | Sequence[int], *, channel_axis: int = 1
) -> Rate:
    """Convert nats per example into nats per position of the latent grid.

    A position is a pixel of an image's code, a frame of a sound's, a voxel of a video's or a token.
    Codes of different sizes then share a target.

    Args:
        nats: Nats per example.
        latents: Latents, or their shape with the batch first.
        channel_axis: Axis that is not a position; -1 for (batch, tokens, features).

    >>> nats_per_position(1024.0, (8, 4, 16, 16))
    4.0
    """
    return nats / _count_positions(latents, channel_axis)


def nats_per_token(nats: Rate, tokens: float | Tensor) -> Rate:
    """Convert nats per example into nats per token of texts of different lengths.

    The result is the mean of the nats divided by the mean number of tokens, so that every token
    counts once.

    Args:
        nats: Nats per example: their mean, or (batch,).
        tokens: Tokens per example: a number, counts (batch,), or a boolean mask (batch, length).

    >>> nats_per_token(12.0, torch.tensor([3, 5]))
    3.0
    """
    if isinstance(tokens, Tensor):
        counts = tokens.sum(-1) if tokens.dtype == torch.bool and tokens.dim() > 1 else tokens
        mean_tokens = counts.to(torch.float64).mean()
    else:
        mean_tokens = torch.tensor(float(tokens), dtype=torch.float64, device="cpu")
    if isinstance(nats, Tensor):
        return nats.mean() / mean_tokens.to(nats.device, nats.dtype)
    return nats / mean_tokens.item()


def bits_per_dimension(nats: Rate, data: Tensor | Sequence[int]) -> Rate:
    """Convert nats per example into bits per value of the data.

    Args:
        nats: Nats per example, of the KL, the reconstruction or their sum.
        data: Batch of data, or its shape with the batch first.

    >>> round(bits_per_dimension(6_388.0, (128, 3, 32, 32)), 3)
    3.0
    """
    return nats / (math.log(2) * math.prod(_shape(data)[1:]))


def bits_per_pixel(nats: Rate, images: Tensor | Sequence[int], *, channel_axis: int = 1) -> Rate:
    """Convert nats per example into bits per pixel, as image compression counts them.

    The channels of a pixel count together. A video has the pixels of all its frames, and a sound
    has samples in their place.

    Args:
        nats: Nats per example.
        images: Batch of images, or its shape with the batch first.
        channel_axis: Axis of the channels; -1 for (batch, height, width, channels).

    >>> round(bits_per_pixel(177.4, (8, 3, 16, 16)), 3)
    1.0
    """
    return nats / (math.log(2) * _count_positions(images, channel_axis))


def _count_positions(values: Tensor | Sequence[int], channel_axis: int) -> int:
    """Return the number of elements of an example in one channel."""
    shape = _shape(values)
    axis = channel_axis % len(shape) if -len(shape) <= channel_axis < len(shape) else 0
    if axis == 0:
        raise ValueError(
            "channel_axis must be an axis other than the batch, "
            f"got {channel_axis} for the shape {shape}"
        )
    return math.prod(size for number, size in enumerate(shape) if number not in (0, axis))


def _shape(values: Tensor | Sequence[int]) -> tuple[int, ...]:
    shape = tuple(values.shape) if isinstance(values, Tensor) else tuple(values)
    if len(shape) < 2:
        raise ValueError(f"expected a batch or its shape (batch, ...), got the shape {shape}")
    return shape


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
