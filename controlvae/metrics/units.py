"""Whether a loss is in nats per example: which sum or mean its reconstruction and its KL are.

The commonest mistake with a VAE is a reconstruction averaged over pixels beside a KL summed over latents. It is found
by computing both terms again and looking at the ratios.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from controlvae.models import Posterior
from controlvae.objectives import bernoulli, gaussian_kl, squared_error

_ALIKE = 0.01  # relative
_ERRORS = ("squared error", "half the squared error", "squared error of sigmoid(output)", "cross-entropy of logits",
           "cross-entropy of probabilities", "absolute error")  # fmt: skip


class Found(NamedTuple):
    """A term of the loss as it was recognised."""

    name: str
    factor: float | None  # what it is as a multiple of nats per example; None where it was not recognised
    words: str


class Sizes(NamedTuple):
    """What a term may have been divided or multiplied by."""

    batch: int
    latents: int
    values: int | None  # of one example of the data


def errors_of(output: Tensor, x: Tensor) -> Tensor:
    """What a reconstruction may be, each summed over an example's values and averaged over the batch; as `_ERRORS`."""
    output, x = output.detach().float().flatten(1), x.detach().float().flatten(1)
    squared = (output - x).square().sum(1)
    probability = output.clamp(1e-7, 1 - 1e-7)
    # Written out: torch's own refuses what is no probability, which logits are not, and all of it under autocast.
    cross_entropy = -(x * probability.log() + (1 - x) * torch.log1p(-probability)).sum(1)
    as_pictures = output[:, None, None], x[:, None, None]  # of one row of pixels
    each = (squared, squared / 2, squared_error(*as_pictures), bernoulli(*as_pictures), cross_entropy,
            (output - x).abs().sum(1))  # fmt: skip
    return torch.stack(each).mean(1)


def kls_of(posterior: Posterior) -> Tensor:
    """The KL in nats per example; and what it would be were the log-variances logarithms of σ."""
    doubled = Posterior(posterior.mean, 2 * posterior.log_variance)
    return torch.stack([gaussian_kl(each).sum(1).mean() for each in (posterior, doubled)])


def recognise_kl(given: float, kls: list[float], sizes: Sizes) -> Found:
    """What `given` is, as a multiple of the KL in nats per example."""
    true, doubled = kls
    known = [
        (1.0, "in nats per example"),
        (1 / sizes.latents, f"a mean over {sizes.latents:,} latents: sum over them, or multiply by {sizes.latents:,}"),
        (sizes.batch, f"a sum over the batch: divide it by {sizes.batch:,}"),
        (1 / sizes.batch, f"divided by the batch twice: multiply it by {sizes.batch:,}"),
        (2.0, "twice what it should be: it lacks its factor 1/2"),
        (-1.0, "negative: its sign is the wrong way round"),
    ]
    if sizes.values:
        share = f"divided by {sizes.values:,}, the values of an example: multiply by {sizes.values:,}"
        known.append((1 / sizes.values, share))
    for factor, words in known:
        if _alike(given, factor * true):
            return Found("KL", factor, words)
    if _alike(given, doubled):
        words = "right if these log-variances are logarithms of σ: give Health twice them"
        return Found("KL", None, words)
    words = f"{given:.4g} where means and log-variances make {true:.4g}: a sampled KL, another prior, or a mistake"
    return Found("KL", None, words)


def recognise_reconstruction(given: float, errors: list[float], sizes: Sizes) -> Found:
    """Which error `given` is, summed or averaged over what."""
    assert sizes.values is not None
    for error, total in zip(_ERRORS, errors, strict=True):
        known = [
            (1.0, f"the {error} in nats per example"),
            (1 / sizes.values, f"the {error} averaged over the {sizes.values:,} values of an example: multiply it by "
                               f"{sizes.values:,}, or take its sum and divide by the batch"),
            (sizes.batch, f"the {error} summed over the batch: divide it by {sizes.batch:,}"),
        ]  # fmt: skip
        for factor, words in known:
            if _alike(given, factor * total):
                return Found("reconstruction", factor, words)
    words = "not one of the usual errors, so its units are for you to check: a sum over each example's values"
    return Found("reconstruction", None, words)


def _alike(a: float, b: float) -> bool:
    return abs(a - b) <= _ALIKE * abs(b)
