"""Whether a loss is in nats per example: which sum or mean its reconstruction and its KL are.

The commonest mistake with a VAE is a reconstruction averaged over pixels beside a KL summed over latents. It is found
by computing both terms again and looking at the ratios.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from controlvae.distributions import Posterior, bernoulli, gaussian_kl, squared_error

_ALIKE = 0.01  # relative
_NOTHING = 1e-6  # nats, of which no units can be told
_ERRORS = (
    "squared error",
    "halved squared error",
    "squared error of sigmoid(output)",
    "cross-entropy of logits",
    "cross-entropy of probabilities",
    "absolute error",
)
_TOKEN_ERRORS = (
    "cross-entropy of tokens",
    "cross-entropy of tokens other than 0",
    "cross-entropy of tokens from 0 up",
)

_Known = tuple[
    float | None, float, str
]  # a factor, as in Found; what the term would then be; in words


class TermCheck(NamedTuple):
    """A term of the loss as it was recognised."""

    name: str
    factor: (
        float | None
    )  # what it is as a multiple of nats per example; None where it was not recognised
    words: str


class Sizes(NamedTuple):
    """What a term may have been divided or multiplied by."""

    batch: int
    latents: int
    values: int | None  # of one example of the data


class Errors(NamedTuple):
    """What a reconstruction may be: each summed over an example's values and averaged over the batch."""

    names: tuple[str, ...]
    totals: Tensor  # (names,)
    values: Tensor  # (names,), that the sum of an example is over, on average


def errors_of(output: Tensor, x: Tensor) -> Errors:
    """The errors of a decoder's output; `x` are values like it, or tokens, whose logits it holds."""
    if output.shape == x.shape:
        totals = _value_errors(output, x)
        return Errors(_ERRORS, totals, torch.full_like(totals, x[0].numel()))
    logits = _logits_of(output, x)
    each = functional.cross_entropy(logits.float(), x.clamp(min=0), reduction="none")
    masks = torch.stack(
        [torch.ones_like(each), (x >= 0) & (x != 0), x >= 0]
    )  # PAD is often 0; -100 is torch's
    return Errors(
        _TOKEN_ERRORS, (each * masks).flatten(1).sum(1) / len(x), masks.flatten(1).sum(1) / len(x)
    )


def _logits_of(output: Tensor, x: Tensor) -> Tensor:
    """(batch, words, ...), as torch's cross-entropy takes them."""
    if not x.is_floating_point() and output.ndim == x.ndim + 1:
        if output.shape[:-1] == x.shape:
            return output.detach().movedim(-1, 1)
        if output.shape[:1] + output.shape[2:] == x.shape:
            return output.detach()
    raise ValueError(
        f"x and output must have one shape, or be tokens and their logits, got {tuple(x.shape)} and "
        f"{tuple(output.shape)}; leave them out where the reconstruction is another comparison"
    )


def _value_errors(output: Tensor, x: Tensor) -> Tensor:
    """As `_ERRORS`."""
    output, x = output.detach().float().flatten(1), x.detach().float().flatten(1)
    squared = (output - x).square().sum(1)
    probability = output.clamp(1e-7, 1 - 1e-7)
    # Written out: torch's own refuses what is no probability, which logits are not, and all of it under autocast.
    cross_entropy = -(x * probability.log() + (1 - x) * torch.log1p(-probability)).sum(1)
    as_pictures = output[:, None, None], x[:, None, None]  # of one row of pixels
    each = (
        squared,
        squared / 2,
        squared_error(*as_pictures),
        bernoulli(*as_pictures),
        cross_entropy,
        (output - x).abs().sum(1),
    )
    return torch.stack(each).mean(1)


def kls_of(posterior: Posterior) -> Tensor:
    """The KL in nats per example; and what it would be were the log-variances logarithms of σ."""
    doubled = Posterior(posterior.mean, 2 * posterior.log_variance)
    return torch.stack([gaussian_kl(each).sum(1).mean() for each in (posterior, doubled)])


def recognise_kl(given: float, kls: list[float], sizes: Sizes) -> TermCheck:
    """What `given` is, as a multiple of the KL in nats per example: that KL where it may be, or else the nearest."""
    true, doubled = kls
    if abs(true) < _NOTHING:
        return TermCheck(
            "KL", None, "zero on this batch, so its units cannot be told: reset() once it has grown"
        )
    if _alike(given, true):
        return TermCheck("KL", 1.0, "in nats per example")
    known: list[_Known] = [(factor, factor * true, words) for factor, words in _scalings(sizes)]
    known.append(
        (None, doubled, "right if these log-variances are logarithms of σ: give Health twice them")
    )
    factor, nearest, words = _nearest(given, known)
    if not _alike(given, nearest):
        words = f"{given:.4g} where means and log-variances make {true:.4g}: a sampled KL, another prior, or a mistake"
        return TermCheck("KL", None, words)
    return TermCheck("KL", factor, words)


def _scalings(sizes: Sizes) -> list[tuple[float, str]]:
    """What a KL is often multiplied by in error, and what to do about it."""
    known = [
        (
            1 / sizes.latents,
            f"a mean over {sizes.latents:,} latents: sum over them, or multiply by {sizes.latents:,}",
        ),
        (sizes.batch, f"a sum over the batch: divide it by {sizes.batch:,}"),
        (1 / sizes.batch, f"divided by the batch twice: multiply it by {sizes.batch:,}"),
        (2.0, "twice what it should be: it lacks its factor 1/2"),
        (-1.0, "negative: its sign is the wrong way round"),
    ]
    if sizes.values:
        share = (
            f"divided by {sizes.values:,}, the values of an example: multiply by {sizes.values:,}"
        )
        known.append((1 / sizes.values, share))
    return known


def recognise_reconstruction(given: float, errors: Errors, batch: int) -> TermCheck:
    """Which error `given` is, summed or averaged over what: the nearest of all, and near enough."""
    known: list[_Known] = [
        (factor, factor * total, words)
        for error, total, values in zip(
            errors.names, errors.totals.tolist(), errors.values.tolist(), strict=True
        )
        for many in [f"{values:,.1f}".removesuffix(".0")]
        for factor, words in (
            (1.0, f"the {error} in nats per example"),
            (
                1 / max(values, 1),
                f"the {error} averaged over the {many} values of an example: multiply it by {many}, "
                f"or take its sum and divide by the batch",
            ),
            (batch, f"the {error} summed over the batch: divide it by {batch:,}"),
        )
    ]
    factor, nearest, words = _nearest(given, known)
    if _alike(given, nearest):
        return TermCheck("reconstruction", factor, words)
    words = "not one of the usual errors, so its units are for you to check: a sum over each example's values"
    return TermCheck("reconstruction", None, words)


def _nearest(given: float, known: list[_Known]) -> _Known:
    """The one nearest to `given`, relative to its own size; of equals the first."""
    return min(known, key=lambda each: abs(given - each[1]) / max(abs(each[1]), 1e-30))


def _alike(a: float, b: float) -> bool:
    return abs(a - b) <= _ALIKE * abs(b)
