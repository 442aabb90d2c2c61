"""Health check for a VAE in training: KL, used latents, mutual information and loss units."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.diagnostics.health_report import HealthReport, find_problems
from controlvae.diagnostics.units import (
    ReconstructionErrors,
    Sizes,
    TermCheck,
    candidate_kls,
    identify_kl,
    identify_reconstruction,
    reconstruction_errors,
)
from controlvae.distributions import Posterior, gaussian_kl
from controlvae.laws.backend import outside_inference_mode, widest_float
from controlvae.metrics.information import (
    ACTIVE_UNIT_VARIANCE,
    MutualInformation,
    aggregate_divergence,
    mutual_information,
)

# Limit on the numbers in the buffer. With very many latents it holds fewer examples.
_MAX_BUFFER = 2**22


class _LossCheck(NamedTuple):
    """Terms of the loss on one batch and their candidates, as tensors, so that nothing waits."""

    sizes: Sizes
    kl: tuple[Tensor, Tensor] | None  # the term and its candidates
    # The term and its candidates; None instead of those if x or output was not passed.
    reconstruction: tuple[Tensor, ReconstructionErrors | None] | None


class Health:
    """Health check for any VAE with Gaussian posteriors.

    Call `update` in the training loop and print the object when you log. It reports the KL, how
    many latents are used, how much the code tells about the data, and how far it is from the prior.
    It warns if the code has collapsed, if values are NaN, and if the terms of the loss have
    different units.

    >>> health = Health()
    >>> for _ in range(10):
    ...     mean, log_variance = torch.randn(64, 8), torch.full((64, 8), -2.0)  # from the encoder
    ...     health.update(mean, log_variance)
    >>> report = health.read()
    >>> report.used_latents, report.alarms
    (8, [])

    `update` adds to running sums on the device and never waits for it. `read()` and `print(health)`
    wait; they estimate the mutual information from the last examples. Call `reset()` after reading,
    because posteriors of earlier weights say nothing about the present ones.

    Pass the terms of the loss to `update` to check their units. The first batch that has them is
    checked, because the units do not change.

    Args:
        keep: Number of recent examples for the mutual information. Its lower bound is at most
            log(keep) nats.
    """

    def __init__(self, keep: int = 4_096) -> None:
        if keep < 2:
            raise ValueError(f"keep must be at least 2 examples, got {keep}")
        self.keep = keep
        self.reset()

    def reset(self) -> None:
        """Discard everything seen so far."""
        self._examples = 0
        self._sums: Tensor | None = None  # (4, latents): KL, mean, mean², variance
        self._recent: Tensor | None = None  # ring buffer (2, examples, latents): mean, log-variance
        self._loss_check: _LossCheck | None = None

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
        """Add a batch.

        Args:
            mean: Means of q(z|x), (batch, ...).
            log_variance: Logarithms of the variances of q(z|x), same shape: log σ², not log σ.
            kl: KL term of the loss as you add it, before any weight.
            reconstruction: Reconstruction term of the loss, before any weight.
            x: Data as the reconstruction compares it, or tokens. Needed to check its units.
            output: Output of the decoder as the reconstruction compares it, or logits of tokens.
        """
        posterior = _flat_posterior(mean, log_variance)
        batch, latents = posterior.mean.shape
        loss_check = self._loss_check
        if loss_check is None and (kl is not None or reconstruction is not None):
            loss_check = _prepare_loss_check(posterior, kl, reconstruction, x, output)
        if self._sums is None or self._recent is None:
            self._allocate(latents, posterior.mean.device)
        assert self._sums is not None
        if latents != self._sums.shape[1]:
            raise ValueError(f"expected {self._sums.shape[1]} latents as before, got {latents}")
        values, variance = posterior.mean.to(self._sums.dtype), posterior.log_variance.exp()
        self._sums += torch.stack(
            [gaussian_kl(posterior).sum(0), values.sum(0), values.square().sum(0), variance.sum(0)]
        )
        self._store(posterior)
        self._loss_check = loss_check
        self._examples += batch

    def _allocate(self, latents: int, device: torch.device) -> None:
        size = max(2, min(self.keep, _MAX_BUFFER // latents))
        dtype = widest_float(device)  # keeps long sums exact
        with outside_inference_mode():
            self._recent = torch.zeros(2, size, latents, device=device)
            self._sums = torch.zeros(4, latents, device=device, dtype=dtype)

    def _store(self, posterior: Posterior) -> None:
        """Write the batch to the ring buffer. The host knows the position, so nothing waits."""
        assert self._recent is not None
        size, batch = self._recent.shape[1], torch.stack(posterior[:2])
        skipped = max(0, batch.shape[1] - size)  # a batch larger than the buffer keeps its end
        batch, start = batch[:, skipped:], (self._examples + skipped) % size
        room = min(size - start, batch.shape[1])
        self._recent[:, start : start + room] = batch[:, :room]
        self._recent[:, : batch.shape[1] - room] = batch[:, room:]

    def read(self) -> HealthReport:
        """Return the report on everything since the last reset. Waits for the device."""
        if self._sums is None or self._recent is None or self._examples < 2:
            raise ValueError(
                f"need at least 2 examples, got {self._examples}: call update() before read()"
            )
        kl, mean, square, variance = (self._sums / self._examples).double().cpu()
        means, log_variances = self._recent[:, : self._examples].double().cpu()
        mean_variance = (square - mean.square()).clamp(min=0)
        divergence = aggregate_divergence(mean, mean_variance + variance)
        terms = [] if self._loss_check is None else _check_terms(self._loss_check)
        active = int((mean_variance > ACTIVE_UNIT_VARIANCE).sum())
        is_finite = bool(torch.isfinite(self._sums).all())
        undefined = MutualInformation(math.nan, math.nan, len(means))
        return HealthReport(
            examples=self._examples,
            kl=kl.sum().item(),
            kl_per_latent=kl.tolist(),
            active_units=active,
            mutual_information=mutual_information(means, log_variances) if is_finite else undefined,
            aggregate_per_latent=divergence.tolist(),
            terms=terms,
            alarms=find_problems(kl.sum().item(), active, divergence.sum().item(), terms),
        )

    def __str__(self) -> str:
        if self._examples < 2:
            return f"Health: {self._examples} examples so far, at least 2 are needed"
        return str(self.read())

    __repr__ = __str__


def _flat_posterior(mean: Tensor, log_variance: Tensor) -> Posterior:
    if mean.ndim < 2 or mean.shape != log_variance.shape:
        raise ValueError(
            f"mean and log_variance must both be (batch, latents), got {tuple(mean.shape)} and "
            f"{tuple(log_variance.shape)}"
        )
    return Posterior(mean.detach().float().flatten(1), log_variance.detach().float().flatten(1))


def _prepare_loss_check(
    posterior: Posterior,
    kl: Tensor | float | None,
    reconstruction: Tensor | float | None,
    x: Tensor | None,
    output: Tensor | None,
) -> _LossCheck:
    device = posterior.mean.device
    compared = None
    if reconstruction is not None:
        errors = None if x is None or output is None else reconstruction_errors(output, x)
        compared = (_as_scalar("reconstruction", reconstruction, device), errors)
    values = None if x is None else x[0].numel()
    return _LossCheck(
        Sizes(len(posterior.mean), posterior.mean.shape[1], values),
        None if kl is None else (_as_scalar("kl", kl, device), candidate_kls(posterior)),
        compared,
    )


def _as_scalar(name: str, value: Tensor | float, device: torch.device) -> Tensor:
    scalar = torch.as_tensor(value, device=device, dtype=torch.float32).detach().clone()
    if scalar.ndim:
        raise ValueError(
            f"{name} must be a scalar, the number that goes into the loss, got shape "
            f"{tuple(scalar.shape)}"
        )
    return scalar


def _check_terms(check: _LossCheck) -> list[TermCheck]:
    terms = []
    if check.reconstruction is not None:
        value, errors = check.reconstruction
        if errors is None:
            reason = "not checked: pass x and output as well"
            terms.append(TermCheck("reconstruction", None, reason))
        else:
            terms.append(identify_reconstruction(value.item(), errors, check.sizes.batch))
    if check.kl is not None:
        value, kls = check.kl
        terms.append(identify_kl(value.item(), kls.tolist(), check.sizes))
    return terms
