"""β-TCVAE objective: total correlation estimated within the batch, without a critic."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from controlvae.distributions import Posterior
from controlvae.lab.objectives.base import Objective, ObjectiveInputs, Terms
from controlvae.lab.objectives.likelihood import Likelihood, check_likelihood
from controlvae.laws import Law


@dataclass(frozen=True)
class BetaTC(Objective):
    """Reconstruction + KL with a weight on its total correlation (β-TCVAE, Chen et al. 2018).

    Attributes:
        likelihood: Likelihood of the reconstruction term.
    """

    likelihood: Likelihood = "bernoulli"

    controlled_quantity: ClassVar[str] = "tc"
    # The estimate with its bias removed, and what was removed.
    extra_columns: ClassVar[tuple[str, ...]] = ("tc", "tc_bias")
    compile_terms: ClassVar[bool] = True
    is_mean_over_examples: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_likelihood(self.likelihood)

    def terms(self, inputs: ObjectiveInputs) -> Terms:
        """Return the total correlation as the controlled term and the rest of the KL as the other.

        The KL is estimated from samples. Its rest is the mutual information plus the KL of each
        q(z_j) from its prior.

        Minibatch-weighted sampling (Chen et al. 2018, appendix C.1): log q(z) is the log of the
        batch's posterior densities, summed and divided by batch x examples. It is biased. The
        joint and each marginal are low by about log(examples), so the total correlation is high by
        about (latents - 1) log(examples). Its gradient is useful; its value is not a target.
        The log has the estimate of `unbiased_total_correlation` instead.
        """
        posterior, z = inputs.posterior, inputs.z
        assert posterior is not None
        assert z is not None
        log_density = _log_densities(posterior, z)
        log_count = math.log(z.shape[-2] * inputs.examples)
        joint = torch.logsumexp(log_density.sum(-1), dim=-1) - log_count  # (..., batch)
        product = (torch.logsumexp(log_density, dim=-2) - log_count).sum(-1)
        correlation = (joint - product).mean(-1)
        # log q(z|x) of each example under its own posterior, (..., batch).
        conditional = log_density.diagonal(dim1=-3, dim2=-2).sum(-2)
        prior = -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)
        sampled_kl = (conditional - prior).mean(-1)
        return Terms(
            inputs.divergence,
            controlled=correlation,
            uncontrolled=sampled_kl - correlation,
            extras=(correlation.detach(),),
        )

    def logged(self, inputs: ObjectiveInputs, terms: Terms) -> tuple[Tensor, ...]:
        """Return the total correlation without its bias, and the bias."""
        assert inputs.posterior is not None
        assert inputs.z is not None
        mean, log_variance = (part.detach() for part in inputs.posterior[:2])
        log_density = _log_densities(Posterior(mean, log_variance), inputs.z.detach())
        estimate = unbiased_total_correlation(log_density, inputs.examples)
        return estimate, terms.extras[0] - estimate

    def check_fit(self, data: Literal["image", "text", "dialog"], law: Law, latents: int) -> None:
        """Raise ValueError for a prior other than N(0, I), or a law that targets the estimate."""
        if data == "dialog":
            raise ValueError(
                "BetaTC needs the prior N(0, I), got dialog data, whose prior is learnt"
            )
        if not (law.open_loop or law.controls_reconstruction):
            raise ValueError(
                "BetaTC's estimate is biased by about (latents - 1) log(examples) and has no "
                f"meaningful target, got control={type(law).__name__}; use an open-loop weight "
                "such as control=Constant(6), or objective=TotalCorrelation()"
            )


def _log_densities(posterior: Posterior, z: Tensor) -> Tensor:
    """Return log q(z_i | x_j) of each latent, (..., i, j, latents)."""
    mean = posterior.mean.unsqueeze(-3)  # (..., 1, batch, latents)
    log_variance = posterior.log_variance.unsqueeze(-3)
    deviation = z.unsqueeze(-2) - mean  # (..., batch, batch, latents)
    return -0.5 * (
        deviation.square() * torch.exp(-log_variance) + log_variance + math.log(2 * math.pi)
    )


def unbiased_total_correlation(log_density: Tensor, examples: int) -> Tensor:
    r"""Estimate the total correlation of a batch, corrected for the size of the batch.

    .. math:: \hat q(z_i) = \frac1N q(z_i | x_i) + \frac{N - 1}{N (B - 1)} \sum_{j \ne i} q(z_i | x_j)

    The objective weights all B densities by 1 / (N B), so a mixture is too small by the factor N,
    and z_i meets its own posterior N / B times too often. These weights sum to 1 and are unbiased
    for the mixture of all N posteriors. The logarithm of their sum is still too low; the jackknife
    removes that in first order.

    The result is unbiased while the posteriors of a batch overlap, which needs a mutual
    information of data and code well below log B. Above it no estimate from one batch is
    (McAllester & Stratos, *Formal limitations on the measurement of mutual information*, 2020).

    Args:
        log_density: log q(z_i | x_j) of each latent, (..., i, j, latents).
        examples: Size of the training set, N.

    Returns:
        The estimate in nats, (...).
    """
    joint = _log_mixture(log_density.sum(-1), examples)  # (..., batch)
    product = _log_mixture(log_density.movedim(-1, 0), examples).sum(0)
    return (joint - product).mean(-1)


def _log_mixture(log_density: Tensor, examples: int) -> Tensor:
    """Return log q(z_i) of the mixture of all posteriors, (..., i), from log q(z_i | x_j)."""
    batch = log_density.shape[-1]
    total = max(examples, batch)
    if batch < 3:  # nothing to leave out
        return log_density.logsumexp(-1) - math.log(batch)
    own = torch.eye(batch, dtype=torch.bool, device=log_density.device)
    other_weight = math.log((total - 1) / (total * (batch - 1)))
    weighted = torch.where(own, log_density - math.log(total), log_density + other_weight)
    estimate = weighted.logsumexp(-1)
    shares = (weighted - estimate.unsqueeze(-1)).exp()  # they sum to 1
    others = shares.masked_fill(own, 0.0)
    # The estimate without example j, relative to the estimate.
    remaining = (others.sum(-1, keepdim=True) - others).clamp(min=0) * ((batch - 1) / (batch - 2))
    kept = remaining + shares.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    smallest = torch.finfo(kept.dtype).tiny
    change = kept.clamp(min=smallest).log().masked_fill(own, 0.0).sum(-1) / (batch - 1)
    # A batch of all examples is no sample: its mixture is exact.
    sampled = 1 - (batch - 1) / (total - 1)
    return estimate - sampled * (batch - 2) * change
