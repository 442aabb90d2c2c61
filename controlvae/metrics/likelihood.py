"""Bounds on log p(x): the importance-weighted bound, and bits per dimension."""

import math
from typing import Any

import torch
from torch import Tensor


def iwae(log_weights: Any, dim: int = 0) -> Tensor:
    r"""Compute the importance-weighted bound of each example, in nats.

    .. math:: \log \frac1k \sum_{i=1}^k w_i, \qquad
              \log w_i = \log p(x|z_i) + \log p(z_i) - \log q(z_i|x)

    with z_i from q(z|x) (Burda et al., *Importance weighted autoencoders*, 2016). It is the ELBO
    for k = 1, rises with k in expectation, and stays below log p(x).

    Args:
        log_weights: Log weights, (k, examples).
        dim: Dimension of the k weights of an example.

    Returns:
        The bound of each example, (examples,).

    >>> iwae([[0.0, -3.0], [0.0, -3.0]]).tolist()
    [0.0, -3.0]
    """
    log_weights = torch.as_tensor(log_weights)
    if log_weights.ndim < 1 or log_weights.shape[dim] < 1:
        raise ValueError(
            "log_weights must have at least one weight per example, got shape "
            f"{tuple(log_weights.shape)}"
        )
    return torch.logsumexp(log_weights, dim) - math.log(log_weights.shape[dim])


def bits_per_dimension(nats: float, dimensions: int) -> float:
    r"""Convert log p(x) in nats to bits per dimension.

    .. math:: -\log_2 p(x) / D

    It is meaningful only for a probability of discrete data, such as Bernoulli on black and white
    pixels. `dequantization_offset` turns a density of 8-bit values into a bound on a probability. A
    cross-entropy of grey values is not a probability, so its bits mean nothing (Theis et al., *A
    note on the evaluation of generative models*, 2016).

    Args:
        nats: log p(x), or a bound on it.
        dimensions: Values per example, D.

    Returns:
        Bits per dimension.

    >>> bits_per_dimension(-784 * math.log(2), 784)
    1.0
    """
    if dimensions < 1:
        raise ValueError(f"dimensions must be at least 1, got {dimensions}")
    return -nats / (dimensions * math.log(2))


def dequantization_offset(variance: float, levels: int = 256) -> float:
    r"""Return the offset per pixel that turns a Gaussian log density into a bound on log P(pixels).

    .. math::  \log P(k) \ge E_u \log N(k/255 + u; \mu, \sigma^2) - \log 255
               = \log N(k/255; \mu, \sigma^2) - \log 255 - \frac{1}{24 \cdot 255^2 \sigma^2}

    for grey levels 0, 1/255, ..., 1, with u uniform within half a level (Theis et al., *A note on
    the evaluation of generative models*, 2016). It does not depend on the mean, so it applies to a
    bound on log p(x) directly. It also penalises a variance that is too small.

    Args:
        variance: Variance of the Gaussian, for pixels in [0, 1].
        levels: Number of grey levels.

    Returns:
        The offset in nats per pixel.

    >>> round(dequantization_offset(1.0), 3)
    -5.541
    """
    if not variance > 0:
        raise ValueError(f"variance must be positive, got {variance}")
    step = 1 / (levels - 1)
    return math.log(step) - step**2 / (24 * variance)


dequantised = dequantization_offset  # name in version 0.1
