"""Likelihoods p(x|z) of images and text: their settings, descriptions and pixel losses."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from controlvae.distributions import bernoulli, gaussian, squared_error


@dataclass(frozen=True)
class Gaussian:
    """Gaussian density of pixels in [0, 1], one variance for all of them, with every constant.

    Its nats may be negative, because it is a density. A learnt variance starts at `variance` and
    is trained like any weight (Rybkin et al., *Simple and effective VAE training with calibrated
    decoders*, 2021). Adam moves its logarithm by at most the learning rate per step, so start it
    near the value it should reach.
    """

    variance: float = 0.01
    learnt: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.variance < math.inf:
            raise ValueError(f"variance must be positive and finite, got {self.variance}")


# -log p(x|z): binary cross-entropy; or the sum of squared errors of the released image code, which
# is a Gaussian of variance 1/2 without its constant; or the cross-entropy of a sentence's tokens;
# or a Gaussian with its constant. User-supplied models also have the cross-entropy of any class
# numbers, and "own": what the model itself computes.
Likelihood = Literal["bernoulli", "squared-error", "tokens", "categorical", "own"] | Gaussian

# Loss of each image, (..., batch), from logits, pixels and the log-variance (None if not learnt).
PixelNLL = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def check_likelihood(likelihood: Likelihood) -> None:
    """Raise ValueError if `likelihood` is not one of the known likelihoods."""
    names = get_args(get_args(Likelihood)[0])
    if not isinstance(likelihood, Gaussian) and likelihood not in names:
        raise ValueError(
            f"likelihood must be one of {', '.join(names)} or Gaussian(...), got {likelihood!r}"
        )


def describe_likelihood(likelihood: Likelihood) -> str:
    """Return the likelihood and the unit of its loss in words, for reports."""
    match likelihood:
        case "bernoulli":
            return "Bernoulli (cross-entropy), nats"
        case "squared-error":
            return (
                "sum of squared errors: nats of a Gaussian of variance 1/2, its constant left out"
            )
        case "tokens":
            return "cross-entropy of tokens, nats"
        case "categorical":
            return "cross-entropy of classes, nats"
        case "own":
            return "computed by the model"
    variance = "learnt" if likelihood.learnt else f"{likelihood.variance:g}"
    return f"Gaussian, variance {variance}: nats of a density over pixels in [0, 1]"


def pixel_nll(likelihood: Likelihood) -> PixelNLL:
    """Return the function that computes -log p(x|z) of each image under a likelihood of images."""
    match likelihood:
        case "bernoulli":
            return lambda logits, x, log_variance: bernoulli(logits, x)
        case "squared-error":
            return lambda logits, x, log_variance: squared_error(logits, x)
        case Gaussian(variance):
            return lambda logits, x, log_variance: gaussian(
                logits, x, _log_variance(variance, logits, log_variance)
            )
    raise ValueError(
        f"likelihood must be bernoulli, squared-error or Gaussian(...) for images, "
        f"got {likelihood!r}"
    )


def _log_variance(fixed: float, like: Tensor, learnt: Tensor | None) -> Tensor:
    return like.new_full((), math.log(fixed)) if learnt is None else learnt
