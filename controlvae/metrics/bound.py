"""Bounds on log p(x): the importance-weighted one, and bits per dimension."""

import math

import torch
from torch import Tensor


def iwae(log_weights: Tensor, dim: int = 0) -> Tensor:
    r"""The importance-weighted bound of each example: :math:`\log \frac{1}{k} \sum_{i=1}^k w_i`, in nats.

    Burda et al., *Importance weighted autoencoders*, 2016. With :math:`\log w_i = \log p(x|z_i) + \log p(z_i) -
    \log q(z_i|x)` and z_i from q(z|x), it is the ELBO for k = 1, rises with k in expectation, and stays below log p(x).

    Args:
        log_weights: (k, examples).
        dim: where the k weights of an example lie.
    """
    if log_weights.ndim < 1 or log_weights.shape[dim] < 1:
        raise ValueError(f"log_weights must hold one weight per example or more, got {tuple(log_weights.shape)}")
    return torch.logsumexp(log_weights, dim) - math.log(log_weights.shape[dim])


def bits_per_dimension(nats: float, dimensions: int) -> float:
    """-log₂ p(x) per value of an example, from log p(x) or a bound on it in nats.

    For a probability of discrete data alone, such as Bernoulli on black and white pixels. A density of 8-bit values,
    or a cross-entropy of grey ones, is no such probability, and its bits are not comparable with anyone's.
    """
    if dimensions < 1:
        raise ValueError(f"dimensions must be 1 or more, got {dimensions}")
    return -nats / (dimensions * math.log(2))
