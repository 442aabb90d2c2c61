"""Total correlation, KL(q(z) || Π q(z_j)): how far the latents are from independent, by two estimators."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from controlvae.distributions import Posterior
from controlvae.lab.objectives.elbo import Divergence, Terms


def critic_terms(divergence: Divergence, joint: Tensor, accuracy: Tensor) -> Terms:
    """FactorVAE: reconstruction + KL + weight x total correlation. `joint`: the critic's logits for z, (batch, 2)."""
    correlation = density_ratio(joint)
    return Terms(divergence, correlation, divergence.kl, (correlation.detach(), accuracy))


def density_ratio(joint: Tensor) -> Tensor:
    """The critic's estimate: the mean of log q(z) - log Π q(z_j), its two logits' difference.

    An estimate, not a bound: a critic that is behind may answer below zero, where the true value never is.
    """
    return (joint[..., 0] - joint[..., 1]).mean(-1)


def shuffled(z: Tensor, order: Tensor) -> Tensor:
    """Every latent in an order of its own across the batch: a draw from Π q(z_j). Both (batch, latents)."""
    return z.gather(-2, order)


def critic_loss(joint: Tensor, independent: Tensor) -> Tensor:
    """Cross-entropy of telling the joint (class 0) from the shuffled (class 1), each half the weight."""
    right = F.logsigmoid(joint[..., 0] - joint[..., 1]).mean(-1)
    return -0.5 * (right + F.logsigmoid(independent[..., 1] - independent[..., 0]).mean(-1))


def critic_loss_gradient(joint: Tensor, independent: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of `critic_loss` at both logits."""
    wrong_joint = torch.sigmoid(joint[..., 1] - joint[..., 0]) * (-0.5 / joint.shape[-2])
    wrong_independent = torch.sigmoid(independent[..., 0] - independent[..., 1]) * (
        0.5 / independent.shape[-2]
    )
    return torch.stack([wrong_joint, -wrong_joint], -1), torch.stack(
        [wrong_independent, -wrong_independent], -1
    )


def critic_accuracy(joint: Tensor, independent: Tensor) -> Tensor:
    """The share it tells right: 0.5 means the estimate is noise around nothing to find."""
    right = (joint[..., 0] > joint[..., 1]).float().mean(-1)
    return 0.5 * (right + (independent[..., 1] > independent[..., 0]).float().mean(-1))


def least_correlation(accuracy: float) -> float:
    """The least total correlation, in nats, of which a critic can tell this share right.

    Whoever tells two distributions apart in a share a of even cases shows a total variation of 2a - 1 or more between
    them, and by Pinsker's inequality a divergence of twice its square or more.

    >>> round(least_correlation(0.68), 3)
    0.259
    """
    return 2 * max(0.0, 2 * accuracy - 1) ** 2


def minibatch_terms(
    divergence: Divergence, posterior: Posterior, z: Tensor, examples: int
) -> Terms:
    r"""β-TCVAE: reconstruction + mutual information + weight x total correlation + KL of each q(z_j).

    Minibatch-weighted sampling (Chen et al. 2018, appendix C.1): log q(z) is taken as the log of the batch's own
    posteriors averaged over batch x examples. Biased: every marginal, and the joint, is low by about log(examples), so
    the total correlation is high by about (latents - 1) log(examples): its gradient serves, its value is no set point.
    """
    mean, log_variance = (
        posterior.mean.unsqueeze(-3),
        posterior.log_variance.unsqueeze(-3),
    )  # (..., 1, batch, latents)
    at = z.unsqueeze(-2)  # (..., batch, 1, latents)
    log_density = -0.5 * (
        (at - mean).square() * torch.exp(-log_variance) + log_variance + math.log(2 * math.pi)
    )
    log_count = math.log(z.shape[-2] * examples)
    joint = torch.logsumexp(log_density.sum(-1), dim=-1) - log_count  # (..., batch)
    product = (torch.logsumexp(log_density, dim=-2) - log_count).sum(-1)
    correlation = (joint - product).mean(-1)
    own = log_density.diagonal(dim1=-3, dim2=-2).sum(
        -2
    )  # log q(z|x) of each example's own z: (..., batch)
    prior = -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)
    kl_by_sample = (own - prior).mean(-1)
    return Terms(divergence, correlation, kl_by_sample - correlation, (correlation.detach(),))
