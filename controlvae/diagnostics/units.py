"""Units of a loss: finds which sum or mean the reconstruction and the KL of a VAE are.

The most common mistake with a VAE is a reconstruction averaged over pixels next to a KL summed over
latents. Both terms are computed again here, and the ratios show what was done.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from controlvae.distributions import Posterior, bernoulli, gaussian_kl, squared_error

_RELATIVE_TOLERANCE = 0.01
_MIN_KL = 1e-6  # nats; the units of a smaller KL cannot be identified
_ERROR_NAMES = (
    "squared error",
    "halved squared error",
    "squared error of sigmoid(output)",
    "cross-entropy of logits",
    "cross-entropy of probabilities",
    "absolute error",
)
_TOKEN_ERROR_NAMES = (
    "cross-entropy of tokens",
    "cross-entropy of tokens other than 0",
    "cross-entropy of tokens from 0 up",
)


class TermCheck(NamedTuple):
    """Result of the unit check of one term of the loss."""

    name: str
    factor: float | None  # the term as a multiple of nats per example; None if unknown
    description: str


class Sizes(NamedTuple):
    """Sizes that a term may have been divided or multiplied by."""

    batch: int
    latents: int
    values: int | None  # per example of the data


class ReconstructionErrors(NamedTuple):
    """Candidates for a reconstruction, summed over values and averaged over the batch."""

    names: tuple[str, ...]
    totals: Tensor  # (names,)
    values: Tensor  # (names,), mean number of values per example in each sum


class _Candidate(NamedTuple):
    factor: float | None  # as in TermCheck
    value: float
    description: str


def reconstruction_errors(output: Tensor, x: Tensor) -> ReconstructionErrors:
    """Compute all usual reconstruction errors of a decoder's output.

    Args:
        output: Output of the decoder.
        x: Data of the same shape, or tokens whose logits `output` holds.
    """
    if output.shape == x.shape:
        totals = _value_errors(output, x)
        return ReconstructionErrors(_ERROR_NAMES, totals, torch.full_like(totals, x[0].numel()))
    logits = _token_logits(output, x)
    errors = functional.cross_entropy(logits.float(), x.clamp(min=0), reduction="none")
    # Padding is often token 0; torch's default ignore_index is -100.
    masks = torch.stack([torch.ones_like(errors), (x >= 0) & (x != 0), x >= 0])
    totals = (errors * masks).flatten(1).sum(1) / len(x)
    return ReconstructionErrors(_TOKEN_ERROR_NAMES, totals, masks.flatten(1).sum(1) / len(x))


def _token_logits(output: Tensor, x: Tensor) -> Tensor:
    """Return logits (batch, words, ...), as torch's cross-entropy takes them."""
    if not x.is_floating_point() and output.ndim == x.ndim + 1:
        if output.shape[:-1] == x.shape:
            return output.detach().movedim(-1, 1)
        if output.shape[:1] + output.shape[2:] == x.shape:
            return output.detach()
    raise ValueError(
        f"x and output must have equal shapes, or be tokens and logits, got {tuple(x.shape)} and "
        f"{tuple(output.shape)}; omit both if the reconstruction is another comparison"
    )


def _value_errors(output: Tensor, x: Tensor) -> Tensor:
    """Return the errors of `_ERROR_NAMES`, in that order."""
    output, x = output.detach().float().flatten(1), x.detach().float().flatten(1)
    squared = (output - x).square().sum(1)
    probability = output.clamp(1e-7, 1 - 1e-7)
    # torch's cross-entropy rejects values outside [0, 1], which logits are, and does not run under
    # autocast. So it is written out here.
    cross_entropy = -(x * probability.log() + (1 - x) * torch.log1p(-probability)).sum(1)
    as_images = output[:, None, None], x[:, None, None]  # images with one row of pixels
    errors = (
        squared,
        squared / 2,
        squared_error(*as_images),
        bernoulli(*as_images),
        cross_entropy,
        (output - x).abs().sum(1),
    )
    return torch.stack(errors).mean(1)


def candidate_kls(posterior: Posterior) -> Tensor:
    """Return the KL in nats per example, and what it is if the log-variances are log σ."""
    doubled = Posterior(posterior.mean, 2 * posterior.log_variance)
    return torch.stack([gaussian_kl(each).sum(1).mean() for each in (posterior, doubled)])


def identify_kl(value: float, kls: list[float], sizes: Sizes) -> TermCheck:
    """Identify the units of a KL term.

    Args:
        value: KL term of the loss.
        kls: Its candidates, from `candidate_kls`.
        sizes: Sizes it may have been divided or multiplied by.

    Returns:
        Nats per example if the value fits, otherwise the nearest common mistake.
    """
    true, doubled = kls
    if abs(true) < _MIN_KL:
        reason = "zero on this batch, so its units are unknown; call reset() once it has grown"
        return TermCheck("KL", None, reason)
    if _is_close(value, true):
        return TermCheck("KL", 1.0, "in nats per example")
    candidates = [
        _Candidate(factor, factor * true, description)
        for factor, description in _common_factors(sizes)
    ]
    reason = "correct if these log-variances are log σ; pass twice their value to Health"
    candidates.append(_Candidate(None, doubled, reason))
    nearest = _nearest(value, candidates)
    if not _is_close(value, nearest.value):
        reason = (
            f"{value:.4g}, but means and log-variances give {true:.4g}: a sampled KL, another "
            "prior, or a mistake"
        )
        return TermCheck("KL", None, reason)
    return TermCheck("KL", nearest.factor, nearest.description)


def _common_factors(sizes: Sizes) -> list[tuple[float, str]]:
    """Return common wrong factors of a KL, each with its remedy."""
    batch, latents, values = sizes
    factors = [
        (
            1 / latents,
            f"a mean over {latents:,} latents; sum over them, or multiply by {latents:,}",
        ),
        (batch, f"a sum over the batch; divide it by {batch:,}"),
        (1 / batch, f"divided by the batch twice; multiply it by {batch:,}"),
        (2.0, "twice its correct value; the factor 1/2 is missing"),
        (-1.0, "negative; its sign is wrong"),
    ]
    if values:
        remedy = f"divided by {values:,}, the values of an example; multiply it by {values:,}"
        factors.append((1 / values, remedy))
    return factors


def identify_reconstruction(value: float, errors: ReconstructionErrors, batch: int) -> TermCheck:
    """Identify the units of a reconstruction term.

    Args:
        value: Reconstruction term of the loss.
        errors: Its candidates, from `reconstruction_errors`.
        batch: Examples in the batch.

    Returns:
        The nearest candidate if it is close enough.
    """
    candidates = []
    columns = (errors.names, errors.totals.tolist(), errors.values.tolist())
    for name, total, values in zip(*columns, strict=True):
        count = f"{values:,.1f}".removesuffix(".0")
        averaged = (
            f"the {name} averaged over the {count} values of an example; multiply it by {count}, "
            "or sum it and divide by the batch"
        )
        for factor, description in (
            (1.0, f"the {name} in nats per example"),
            (1 / max(values, 1), averaged),
            (batch, f"the {name} summed over the batch; divide it by {batch:,}"),
        ):
            candidates.append(_Candidate(factor, factor * total, description))
    nearest = _nearest(value, candidates)
    if _is_close(value, nearest.value):
        return TermCheck("reconstruction", nearest.factor, nearest.description)
    reason = (
        "not a common error, so its units are unknown; it must be a sum over the values of each "
        "example"
    )
    return TermCheck("reconstruction", None, reason)


def _nearest(value: float, candidates: list[_Candidate]) -> _Candidate:
    """Return the candidate with the smallest relative distance; the first of equal ones."""
    return min(candidates, key=lambda each: abs(value - each.value) / max(abs(each.value), 1e-30))


def _is_close(a: float, b: float) -> bool:
    return abs(a - b) <= _RELATIVE_TOLERANCE * abs(b)
