"""ELBO objective, with optional free bits or per-latent KL weights."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from controlvae.lab.objectives.base import Objective, ObjectiveInputs, Terms
from controlvae.lab.objectives.likelihood import Likelihood, check_likelihood
from controlvae.lab.optimiser import scheduled_range, scheduled_value
from controlvae.laws import Law, Schedule
from controlvae.laws.backend import FLOATS, Backend, Value


@dataclass(frozen=True)
class Elbo(Objective):
    """Reconstruction + weight x KL, in nats per example. The ELBO is its negative at weight 1.

    With free bits λ the weight multiplies Σ max(λ, KL of a latent), so that a latent costs nothing
    extra below λ nats (Kingma et al., *Improved variational inference with inverse autoregressive
    flow*, 2016, appendix C.8).

    With per-latent weights the gradient is that of Σ weight x KL of a latent. The measured value
    stays the KL itself, so a target keeps its meaning.

    Attributes:
        likelihood: Likelihood of the reconstruction term.
        free_bits: λ, in nats per latent, applied to the KL averaged over the batch.
        kl_weights: KL weight of each latent, a number or a schedule. The last one also applies to
            the latents after it. All weights are 1 if empty.
    """

    likelihood: Likelihood = "bernoulli"
    free_bits: float = 0.0
    kl_weights: tuple[float | Schedule, ...] = ()

    former_names: ClassVar[dict[str, str]] = {"kl_weights": "prices"}

    def __post_init__(self) -> None:
        check_likelihood(self.likelihood)
        if not 0 <= self.free_bits < math.inf:
            raise ValueError(f"free_bits must be zero or positive nats, got {self.free_bits}")
        for weight in self.kl_weights:
            lowest, highest = scheduled_range(weight)
            if not 0 < lowest <= highest < math.inf:
                raise ValueError(f"kl_weights must be positive and finite, got {weight}")
        if self.free_bits and self.kl_weights:
            raise ValueError(
                "free_bits and kl_weights cannot be combined, "
                f"got {self.free_bits} and {self.kl_weights}; set one of them"
            )

    def terms(self, inputs: ObjectiveInputs) -> Terms:
        """Return the KL as the controlled term."""
        kl, per_latent = inputs.divergence
        if inputs.kl_weights is not None:
            weighted = (per_latent * inputs.kl_weights).sum(-1)
            # The value is the KL, the gradient that of the weighted KL.
            return Terms(inputs.divergence, controlled=weighted + (kl - weighted).detach())
        if self.free_bits:
            kl = per_latent.clamp(min=self.free_bits).sum(-1)
        return Terms(inputs.divergence, controlled=kl)

    def kl_weights_at(self, latents: int, step: Value, xp: Backend = FLOATS) -> list[Value]:
        """Return one KL weight per latent at a step. See `Objective.kl_weights_at`."""
        if not self.kl_weights:
            return []
        last = len(self.kl_weights) - 1
        return [
            scheduled_value(self.kl_weights[min(latent, last)], step, xp)
            for latent in range(latents)
        ]

    def needs_whole_batch(self) -> bool:
        """Return whether there are free bits, which compare λ with the KL of the whole batch."""
        return self.free_bits > 0

    def has_scheduled_kl_weights(self) -> bool:
        """Return whether any KL weight is a schedule."""
        return any(isinstance(weight, Schedule) for weight in self.kl_weights)

    def check_fit(self, data: Literal["image", "text", "dialog"], law: Law, latents: int) -> None:
        """Raise ValueError if free bits meet a closed loop or there are too many KL weights."""
        if self.free_bits and not law.open_loop:
            raise ValueError(
                f"objective.free_bits={self.free_bits} sets its own floor of the KL and needs an "
                f"open-loop weight such as control=Constant(1), got {type(law).__name__}"
            )
        if len(self.kl_weights) > latents:
            raise ValueError(
                f"objective.kl_weights has {len(self.kl_weights)} weights for {latents} latents; "
                "remove some, or raise model.latents"
            )
