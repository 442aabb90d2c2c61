"""How a VAE is doing while it trains: what its code carries, whether it has collapsed, whether its loss adds up."""

import math
import textwrap
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.diagnostics.collapse import COLLAPSE_REMEDY, COLLAPSE_THRESHOLD
from controlvae.diagnostics.units import (
    Errors,
    Sizes,
    TermCheck,
    errors_of,
    kls_of,
    recognise_kl,
    recognise_reconstruction,
)
from controlvae.distributions import Posterior, gaussian_kl
from controlvae.laws.backend import outside_inference_mode, widest_float
from controlvae.metrics.information import (
    ACTIVE_UNIT_VARIANCE,
    MutualInformation,
    aggregate_divergence,
    mutual_information,
)

_MOST_KEPT = 2**22  # numbers: where an example has very many latents, fewer examples are kept
_FAR = 1.0  # nats between aggregate posterior and prior, from which samples of the prior are worth a word
_SHOWN, _WIDE = 6, 88  # latents and columns of the summary


@dataclass(frozen=True)
class HealthReport:
    """What `Health` read off the batches since it was made or reset. Nats per example."""

    examples: int
    kl: float
    kl_per_latent: list[float]
    active_units: int
    mutual_information: MutualInformation
    aggregate_per_latent: list[float]  # KL of the aggregate posterior's Gaussian from the prior
    terms: list[TermCheck]  # the loss, term by term, where it was given
    alarms: list[str]

    @property
    def aggregate_divergence(self) -> float:
        """How far the aggregate posterior is from the prior at least."""
        return sum(self.aggregate_per_latent)

    @property
    def effective_beta(self) -> float | None:
        """What a weight of one before the KL amounts to; None where a term was not given or not recognised."""
        return _effective_beta(self.terms)

    def __str__(self) -> str:
        latents, information = len(self.kl_per_latent), self.mutual_information
        order = sorted(range(latents), key=lambda j: -self.kl_per_latent[j])[:_SHOWN]
        each = "  ".join(f"z{j + 1} {self.kl_per_latent[j]:.2f}" for j in order)
        most = math.log(information.examples)
        lines = [
            f"health over {self.examples:,} examples, in nats per example",
            f"  KL                   {self.kl:.2f}",
            f"  of its latents       {each}{'  ...' if latents > _SHOWN else ''}",
            f"  active units         {self.active_units} of {latents}",
            f"  mutual information   {information.lower:.2f} to {information.upper:.2f} "
            f"(the last {information.examples:,} examples; they cannot show more than {most:.1f})",
            f"  aggregate posterior  {self.aggregate_divergence:.2f} or more from the prior",
            *(f"  {found.name:<20} {found.words}" for found in self.terms),
            *(f"  alarm                {alarm}" for alarm in self.alarms),
        ]
        lines += [] if self.alarms else ["  alarm                none"]
        return "\n".join(textwrap.fill(line, _WIDE, subsequent_indent=" " * 23) for line in lines)


class _FirstBatch(NamedTuple):
    """The loss of one batch beside what it may be; tensors, so that nothing waits."""

    sizes: Sizes
    kl: tuple[Tensor, Tensor] | None  # given; candidates
    reconstruction: (
        tuple[Tensor, Errors | None] | None
    )  # without candidates where there was nothing to compare


class Health:
    """Advice and alarms for any VAE with Gaussian posteriors, from its means and log-variances.

    >>> health = Health()
    >>> for _ in range(10):
    ...     mean, log_variance = torch.randn(64, 8), torch.full((64, 8), -2.0)   # your encoder's, in your loop
    ...     health.update(mean, log_variance)
    >>> health.read().active_units
    8

    `update` adds to running sums on the device and never waits for it. `read()`, or `print(health)`, waits, works out
    the mutual information from the last examples kept, and says what is wrong. `reset()` begins anew: posteriors of
    last week's weights say nothing about today's.

    Give `update` the loss as well, and it says whether reconstruction and KL are in the same units. That is looked at
    on the first batch that brings it alone, since it does not change.

    Args:
        keep: how many of the last examples the mutual information is worked out from; log(keep) nats are the most that
            its lower bound can show.
    """

    def __init__(self, keep: int = 4_096) -> None:
        if keep < 2:
            raise ValueError(f"keep must be two examples or more, got {keep}")
        self.keep = keep
        self.reset()

    def reset(self) -> None:
        """Forgets all it has seen."""
        self._examples = 0
        self._sums: Tensor | None = None  # (4, latents): KL, mean, mean², variance
        self._kept: Tensor | None = (
            None  # (2, examples, latents): a ring of means and log-variances
        )
        self._first: _FirstBatch | None = None

    @torch.no_grad()
    def update(
        self,
        mean: Tensor,
        log_variance: Tensor,
        *,
        kl: Tensor | float | None = None,
        reconstruction: Tensor | float | None = None,
        x: Tensor | None = None,
        output: Tensor | None = None,
    ) -> None:
        """Takes in a batch.

        Args:
            mean, log_variance: of q(z|x), (batch, ...); log σ², not log σ.
            kl, reconstruction: the terms of the loss as you add them up, before any weight.
            x, output: the data and the decoder's output as the reconstruction compares them, or tokens and their
                logits; needed to check it.
        """
        posterior = _posterior(mean, log_variance)
        batch, latents = posterior.mean.shape
        first = self._first
        if first is None and (kl is not None or reconstruction is not None):
            first = _first_batch(posterior, kl, reconstruction, x, output)
        if self._sums is None or self._kept is None:
            size = max(2, min(self.keep, _MOST_KEPT // latents))
            dtype = widest_float(posterior.mean.device)  # keeps a long sum exact
            with outside_inference_mode():
                self._kept = torch.zeros(2, size, latents, device=posterior.mean.device)
                self._sums = torch.zeros(4, latents, device=posterior.mean.device, dtype=dtype)
        if latents != self._sums.shape[1]:
            raise ValueError(
                f"this batch has {latents} latents, those before it had {self._sums.shape[1]}"
            )
        values, variance = posterior.mean.to(self._sums.dtype), posterior.log_variance.exp()
        self._sums += torch.stack(
            [gaussian_kl(posterior).sum(0), values.sum(0), values.square().sum(0), variance.sum(0)]
        )
        self._keep(posterior)
        self._first = first
        self._examples += batch

    def _keep(self, posterior: Posterior) -> None:
        """Writes the batch into the ring. Where it goes is known to the host, so the device is not asked."""
        assert self._kept is not None
        size, batch = self._kept.shape[1], torch.stack(posterior[:2])
        passed = max(0, batch.shape[1] - size)  # of a batch larger than the ring the last ones stay
        batch, start = batch[:, passed:], (self._examples + passed) % size
        room = min(size - start, batch.shape[1])
        self._kept[:, start : start + room] = batch[:, :room]
        self._kept[:, : batch.shape[1] - room] = batch[:, room:]

    def read(self) -> HealthReport:
        """Everything there is to say so far. Waits for the device."""
        if self._sums is None or self._kept is None or self._examples < 2:
            raise ValueError(
                f"nothing to read yet: two examples are the least, {self._examples} went into update()"
            )
        kl, mean, square, variance = (self._sums / self._examples).double().cpu()
        means, log_variances = self._kept[:, : self._examples].double().cpu()
        spread = (square - mean.square()).clamp(min=0)
        apart = aggregate_divergence(mean, spread + variance)
        terms = [] if self._first is None else _terms(self._first)
        active = int((spread > ACTIVE_UNIT_VARIANCE).sum())
        finite = bool(torch.isfinite(self._sums).all())
        nowhere = MutualInformation(math.nan, math.nan, len(means))
        return HealthReport(
            examples=self._examples,
            kl=kl.sum().item(),
            kl_per_latent=kl.tolist(),
            active_units=active,
            mutual_information=mutual_information(means, log_variances) if finite else nowhere,
            aggregate_per_latent=apart.tolist(),
            terms=terms,
            alarms=_alarms(kl.sum().item(), active, apart.sum().item(), terms),
        )

    def __str__(self) -> str:
        return (
            str(self.read())
            if self._examples > 1
            else f"health: {self._examples} examples seen, two are the least"
        )

    __repr__ = __str__


def _posterior(mean: Tensor, log_variance: Tensor) -> Posterior:
    if mean.ndim < 2 or mean.shape != log_variance.shape:
        raise ValueError(
            f"mean and log_variance must both be (batch, latents), got {tuple(mean.shape)} and "
            f"{tuple(log_variance.shape)}"
        )
    return Posterior(mean.detach().float().flatten(1), log_variance.detach().float().flatten(1))


def _first_batch(
    posterior: Posterior,
    kl: Tensor | float | None,
    reconstruction: Tensor | float | None,
    x: Tensor | None,
    output: Tensor | None,
) -> _FirstBatch:
    device = posterior.mean.device
    compared = None
    if reconstruction is not None:
        errors = None if x is None or output is None else errors_of(output, x)
        compared = (_scalar("reconstruction", reconstruction, device), errors)
    return _FirstBatch(
        Sizes(len(posterior.mean), posterior.mean.shape[1], None if x is None else x[0].numel()),
        None if kl is None else (_scalar("kl", kl, device), kls_of(posterior)),
        compared,
    )


def _scalar(name: str, given: Tensor | float, device: torch.device) -> Tensor:
    value = torch.as_tensor(given, device=device, dtype=torch.float32).detach().clone()
    if value.ndim:
        raise ValueError(
            f"{name} must be the one number that goes into the loss, got shape {tuple(value.shape)}"
        )
    return value


def _terms(first: _FirstBatch) -> list[TermCheck]:
    terms = []
    if first.reconstruction is not None:
        given, errors = first.reconstruction
        unchecked = TermCheck("reconstruction", None, "not checked: give x and output as well")
        found = (
            unchecked
            if errors is None
            else recognise_reconstruction(given.item(), errors, first.sizes.batch)
        )
        terms.append(found)
    if first.kl is not None:
        given, kls = first.kl
        terms.append(recognise_kl(given.item(), kls.tolist(), first.sizes))
    return terms


def _effective_beta(terms: list[TermCheck]) -> float | None:
    factors = {found.name: found.factor for found in terms}
    kl, reconstruction = factors.get("KL"), factors.get("reconstruction")
    return None if kl is None or reconstruction is None else kl / reconstruction


def _alarms(kl: float, active: int, apart: float, terms: list[TermCheck]) -> list[str]:
    if not math.isfinite(kl):
        return [
            "means or log-variances became NaN or infinite: take a smaller learning rate, clip the gradient, or "
            "clamp the log-variances to [-20, 20]"
        ]
    alarms = []
    beta = _effective_beta(terms)
    if any(found.factor is not None and found.factor < 0 for found in terms):
        return [
            "a term of the loss has the wrong sign, so training drives it away from zero, see above"
        ]
    if beta is not None and abs(beta - 1) > 0.01:
        alarms.append(
            f"reconstruction and KL are in different units: a weight of 1 before this KL acts as β = {beta:.4g}"
        )
    elif beta is not None and terms[0].factor != 1:
        alarms.append(
            "both terms are scaled alike: no harm to the model, but a target in nats needs the KL in nats"
        )
    elif beta is None and any(found.factor not in (None, 1.0) for found in terms):
        alarms.append("a term of the loss is not in nats per example, see above")
    if kl < COLLAPSE_THRESHOLD or active == 0:
        alarms.append(f"collapsed: {kl:.3f} nats, {active} active units; {COLLAPSE_REMEDY}")
    if apart > _FAR and apart > 0.2 * kl:
        alarms.append(
            f"codes of data and samples of the prior lie apart by {apart:.1f} of {kl:.1f} nats: expect poor samples "
            f"from N(0, I); train longer, or raise the weight"
        )
    return alarms
