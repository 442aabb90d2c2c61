"""β-TCVAE objective: total correlation estimated within the batch, without a critic."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

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
    extra_columns: ClassVar[tuple[str, ...]] = ("tc",)
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
        """
        posterior, z = inputs.posterior, inputs.z
        assert posterior is not None
        assert z is not None
        mean = posterior.mean.unsqueeze(-3)  # (..., 1, batch, latents)
        log_variance = posterior.log_variance.unsqueeze(-3)
        deviation = z.unsqueeze(-2) - mean  # (..., batch, batch, latents)
        log_density = -0.5 * (
            deviation.square() * torch.exp(-log_variance) + log_variance + math.log(2 * math.pi)
        )
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
