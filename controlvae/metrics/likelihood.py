"""Bounds on log p(x): the importance-weighted one, and bits per dimension."""

import math
from typing import Any

import torch
from torch import Tensor


def iwae(log_weights: Any, dim: int = 0) -> Tensor:
    r"""The importance-weighted bound of each example: :math:`\log \frac{1}{k} \sum_{i=1}^k w_i`, in nats.

    Burda et al., *Importance weighted autoencoders*, 2016. With :math:`\log w_i = \log p(x|z_i) + \log p(z_i) -
    \log q(z_i|x)` and z_i from q(z|x), it is the ELBO for k = 1, rises with k in expectation, and stays below log p(x).

    Args:
        log_weights: (k, examples).
        dim: where the k weights of an example lie.
    """
    log_weights = torch.as_tensor(log_weights)
    if log_weights.ndim < 1 or log_weights.shape[dim] < 1:
        raise ValueError(
            f"log_weights must hold one weight per example or more, got {tuple(log_weights.shape)}"
        )
    return torch.logsumexp(log_weights, dim) - math.log(log_weights.shape[dim])


def bits_per_dimension(nats: float, dimensions: int) -> float:
    """-log₂ p(x) per value of an example, from log p(x) or a bound on it in nats.

    For a probability of discrete data alone, such as Bernoulli on black and white pixels. A density of 8-bit values
    becomes a bound on one by `dequantised`; a cross-entropy of grey values is none, and its bits mean nothing.
    """
    if dimensions < 1:
        raise ValueError(f"dimensions must be 1 or more, got {dimensions}")
    return -nats / (dimensions * math.log(2))


def dequantised(variance: float, levels: int = 256) -> float:
    r"""What to add per pixel to a Gaussian's log density at the grey levels 0, 1/255, ..., 1 to bound log P(pixels).

    .. math::  \log P(k) \ge E_u \log N(k/255 + u; \mu, \sigma^2) - \log 255
               = \log N(k/255; \mu, \sigma^2) - \log 255 - \frac{1}{24 \cdot 255^2 \sigma^2}

    with u uniform within half a level (Theis et al., *A note on the evaluation of generative models*, 2016). It does
    not depend on the mean, so it serves a bound on log p(x) as it is; and it keeps a small variance honest.
    """
    if not variance > 0:
        raise ValueError(f"variance must be positive, got {variance}")
    step = 1 / (levels - 1)
    return math.log(step) - step**2 / (24 * variance)
