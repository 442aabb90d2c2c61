"""Summary of what `Health` measured, with its verdicts in words."""

import math
import textwrap
from dataclasses import dataclass

from controlvae.diagnostics.collapse import (
    COLLAPSE_REMEDY,
    COLLAPSE_THRESHOLD,
    count_used_latents,
    describe_used_latents,
)
from controlvae.diagnostics.units import TermCheck
from controlvae.metrics.information import MutualInformation

# Divergence of the aggregate posterior from the prior, in nats and as a share of the KL, above
# which samples from the prior look worse than reconstructions.
_FAR_NATS, _FAR_SHARE = 1.0, 0.2
_SAME_UNITS_TOLERANCE = 0.01
_LATENTS_SHOWN = 6
_TEXT_WIDTH, _LABEL_WIDTH = 88, 21


@dataclass(frozen=True)
class HealthReport:
    """State of a VAE's latent code over the batches that `Health` has seen. Nats per example.

    Attributes:
        examples: Number of examples.
        kl: Total KL.
        kl_per_latent: KL of each latent.
        active_units: Latents whose posterior mean varies between examples (Burda et al. 2016).
        mutual_information: Bounds on the mutual information of data and code.
        aggregate_per_latent: KL of each latent's aggregate posterior from the prior, as Gaussians.
        terms: Unit check of each term of the loss that was passed.
        alarms: Problems that were found, one sentence or more each; empty if there are none.
    """

    examples: int
    kl: float
    kl_per_latent: list[float]
    active_units: int
    mutual_information: MutualInformation
    aggregate_per_latent: list[float]
    terms: list[TermCheck]
    alarms: list[str]

    @property
    def used_latents(self) -> int:
        """Number of latents with a KL of at least 0.01 nats."""
        return count_used_latents(self.kl_per_latent)

    @property
    def aggregate_divergence(self) -> float:
        """Lower bound on the divergence of the aggregate posterior from the prior."""
        return sum(self.aggregate_per_latent)

    @property
    def effective_beta(self) -> float | None:
        """Weight that a factor of 1 on the KL amounts to, or None if the units are unknown."""
        return effective_beta(self.terms)

    def __str__(self) -> str:
        latents, information = len(self.kl_per_latent), self.mutual_information
        largest = sorted(range(latents), key=lambda j: -self.kl_per_latent[j])[:_LATENTS_SHOWN]
        listed = "  ".join(f"z{j + 1} {self.kl_per_latent[j]:.2f}" for j in largest)
        ceiling = math.log(information.examples)
        rows = [
            ("KL", f"{self.kl:.2f}"),
            ("KL per latent", listed + ("  ..." if latents > _LATENTS_SHOWN else "")),
            ("used latents", f"{describe_used_latents(self.kl_per_latent)} (KL at least 0.01)"),
            ("active units", f"{self.active_units} of {latents} (mean varies between examples)"),
            (
                "mutual information",
                f"{information.lower:.2f} to {information.upper:.2f} ({information.examples:,} "
                f"examples can show at most {ceiling:.1f})",
            ),
            ("distance from prior", f"{self.aggregate_divergence:.2f} or more"),
            *((f"{term.name} term", term.description) for term in self.terms),
            *(("verdict", alarm) for alarm in self.alarms or ["no problem found"]),
        ]
        title = f"Health over {self.examples:,} examples, in nats per example"
        return "\n".join([title, *(_format_row(label, text) for label, text in rows)])


def _format_row(label: str, text: str) -> str:
    indent = " " * (_LABEL_WIDTH + 2)
    line = f"  {label:<{_LABEL_WIDTH}}{text}"
    return textwrap.fill(line, _TEXT_WIDTH, subsequent_indent=indent)


def effective_beta(terms: list[TermCheck]) -> float | None:
    """Return the ratio of the factors of KL and reconstruction, or None if one is unknown."""
    factors = {term.name: term.factor for term in terms}
    kl, reconstruction = factors.get("KL"), factors.get("reconstruction")
    return None if kl is None or reconstruction is None else kl / reconstruction


def find_problems(
    kl: float, active_units: int, divergence: float, terms: list[TermCheck]
) -> list[str]:
    """Return one or more sentences for each problem, or an empty list.

    Args:
        kl: Total KL in nats per example.
        active_units: Number of latents whose posterior mean varies.
        divergence: Divergence of the aggregate posterior from the prior, in nats.
        terms: Unit checks of the loss.
    """
    if not math.isfinite(kl):
        return [
            "means or log-variances are NaN or infinite. Lower the learning rate, clip the "
            "gradient, or clamp the log-variances to [-20, 20]."
        ]
    if any(term.factor is not None and term.factor < 0 for term in terms):
        return [
            "a term of the loss has the wrong sign (see above). Training drives it away from zero."
        ]
    problems = _find_unit_problems(terms)
    if kl < COLLAPSE_THRESHOLD or active_units == 0:
        problems.append(
            f"the code has collapsed: its KL is {kl:.3f} nats and {active_units} units are "
            f"active; {COLLAPSE_REMEDY}."
        )
    if divergence > _FAR_NATS and divergence > _FAR_SHARE * kl:
        problems.append(
            f"codes of the data are far from the prior: {divergence:.1f} of {kl:.1f} nats. Expect "
            "poor samples from N(0, I). Train longer, or raise the KL weight."
        )
    return problems


def _find_unit_problems(terms: list[TermCheck]) -> list[str]:
    beta = effective_beta(terms)
    if beta is not None and abs(beta - 1) > _SAME_UNITS_TOLERANCE:
        return [
            "reconstruction and KL have different units. A weight of 1 on this KL acts as "
            f"β = {beta:.4g}."
        ]
    if beta is not None and terms[0].factor != 1:
        return [
            "both terms are scaled by the same factor. The model is not affected, but a target in "
            "nats needs the KL in nats."
        ]
    if beta is None and any(term.factor not in (None, 1.0) for term in terms):
        return ["a term of the loss is not in nats per example (see above)."]
    return []
