"""What a run minimises and how, as settings."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from controlvae.lab.config.validation import require
from controlvae.laws import Schedule
from controlvae.laws.backend import FLOATS, Backend, Value


@dataclass(frozen=True)
class Gaussian:
    """Pixels in [0, 1] under one variance for all, with every constant: a density, so its nats may be negative.

    A learnt variance starts at `variance` and is a weight like any other (Rybkin et al., *Simple and effective VAE
    training with calibrated decoders*, 2021). Adam moves its logarithm by its rate at most, so start near the end.
    """

    variance: float = 0.01
    learnt: bool = False

    def __post_init__(self) -> None:
        require(
            0 < self.variance < math.inf,
            f"variance must be positive and finite, got {self.variance}",
        )


# -log p(x|z): binary cross-entropy; or the sum of squared errors of the released image code, a Gaussian of variance 1/2
# without its constant; or the cross-entropy of a sentence's tokens; or a Gaussian in full.
Likelihood = Literal["bernoulli", "squared-error", "tokens"] | Gaussian


def _check_likelihood(likelihood: Likelihood) -> None:
    names = get_args(get_args(Likelihood)[0])
    known = isinstance(likelihood, Gaussian) or likelihood in names
    require(
        known, f"likelihood must be one of {', '.join(names)} or Gaussian(...), got {likelihood!r}"
    )


def describe_likelihood(likelihood: Likelihood) -> str:
    """Which it is and what its numbers are, for reports."""
    match likelihood:
        case "bernoulli":
            return "Bernoulli (cross-entropy), nats"
        case "squared-error":
            return (
                "sum of squared errors: nats of a Gaussian of variance 1/2, its constant left out"
            )
        case "tokens":
            return "cross-entropy of tokens, nats"
    variance = "learnt" if likelihood.learnt else f"{likelihood.variance:g}"
    return f"Gaussian, variance {variance}: nats of a density over pixels in [0, 1]"


def _range(setting: float | Schedule) -> tuple[float, float]:
    return (
        (setting.lowest(), setting.highest())
        if isinstance(setting, Schedule)
        else (setting, setting)
    )


def _at(setting: float | Schedule, step: Value, xp: Backend) -> Value:
    return setting.at(step, xp) if isinstance(setting, Schedule) else setting


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba, 2015. The released code's betas; the paper prints 0.99 for the second.

    A schedule in the place of the rate makes it a function of the step: `Points((20_000, 40_000), (1e-3, 1e-4))`.
    """

    rate: float | Schedule = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float | None = None  # the most a gradient's norm over all weights may be; None lets it be

    def __post_init__(self) -> None:
        require(
            self.clip is None or 0 < self.clip < math.inf,
            f"clip must be positive and finite, got {self.clip}",
        )
        least, most = _range(self.rate)
        require(0 < least <= most < math.inf, f"rate must be positive and finite, got {self.rate}")
        require(
            0 <= self.beta1 < 1 and 0 <= self.beta2 < 1,
            f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}",
        )

    def at(self, step: Value, xp: Backend = FLOATS) -> Value:
        """The rate of a step; steps count from one."""
        return _at(self.rate, step, xp)


class Objective:
    """What every objective says of itself."""

    controlled_quantity: ClassVar[str] = (
        "kl"  # the column of the log that the weight multiplies and, as a rule, a controller holds
    )
    extras: ClassVar[tuple[str, ...]] = ()  # columns of the log beyond those of every objective
    batches: ClassVar[int] = 1  # independent ones that a step takes
    draws: ClassVar[int] = 1  # of noise, each (batch, latents), that a step takes


@dataclass(frozen=True)
class Elbo(Objective):
    """Reconstruction + weight x KL, in nats per example."""

    likelihood: Likelihood = "bernoulli"
    free_bits: float = 0.0  # nats a latent may spend: the KL of each, averaged over the batch, costs no less than these
    kl_weights: tuple[
        float | Schedule, ...
    ] = ()  # of a nat of each latent, the last also of those after it; all 1 if none

    former_names: ClassVar[dict[str, str]] = {"kl_weights": "prices"}

    def __post_init__(self) -> None:
        _check_likelihood(self.likelihood)
        require(
            0 <= self.free_bits < math.inf,
            f"free_bits must be zero or positive nats, got {self.free_bits}",
        )
        for weight in self.kl_weights:
            least, most = _range(weight)
            require(
                0 < least <= most < math.inf,
                f"kl_weights must be positive and finite, got {weight}",
            )
        require(
            not (self.free_bits and self.kl_weights),
            "free_bits and kl_weights do not go together: choose one",
        )

    def kl_weights_at(self, latents: int, step: Value, xp: Backend = FLOATS) -> list[Value]:
        """What a nat of each latent costs at a step; steps count from one."""
        return [
            _at(self.kl_weights[min(latent, len(self.kl_weights) - 1)], step, xp)
            for latent in range(latents)
        ]


@dataclass(frozen=True)
class TotalCorrelation(Objective):
    """Reconstruction + KL + weight x total correlation, as a critic estimates it (FactorVAE, Kim & Mnih 2018).

    The critic tells latents of an example from latents shuffled across a second, independent batch.
    """

    likelihood: Likelihood = "bernoulli"
    critic: tuple[int, ...] = (1000, 1000, 1000, 1000, 1000)  # widths of its hidden layers
    critic_optimiser: Adam = field(default_factory=lambda: Adam(1e-4, 0.5, 0.9))

    controlled_quantity: ClassVar[str] = "tc"
    extras: ClassVar[tuple[str, ...]] = ("tc", "critic_accuracy")
    batches: ClassVar[int] = 2
    draws: ClassVar[int] = 3  # z's of both batches, and a shuffling

    def __post_init__(self) -> None:
        _check_likelihood(self.likelihood)
        require(len(self.critic) > 0, "critic must name at least one hidden layer")
        require(
            all(width > 0 for width in self.critic),
            f"critic must be positive widths, got {self.critic}",
        )


@dataclass(frozen=True)
class BetaTC(Objective):
    """Reconstruction + KL with its total correlation weighed, estimated in the batch (β-TCVAE, Chen et al. 2018)."""

    likelihood: Likelihood = "bernoulli"

    controlled_quantity: ClassVar[str] = "tc"
    extras: ClassVar[tuple[str, ...]] = ("tc",)

    def __post_init__(self) -> None:
        _check_likelihood(self.likelihood)


@dataclass(frozen=True)
class BagOfWords(Objective):
    """Reconstruction + weight x KL + the cost of guessing a response's words from the code alone, in any order.

    Zhao et al. 2017. That last part is no part of the ELBO: it keeps the code in use.
    """

    weight: float = 1.0  # of the guessing

    extras: ClassVar[tuple[str, ...]] = ("bag_of_words",)

    def __post_init__(self) -> None:
        require(
            0 < self.weight < math.inf, f"weight must be positive and finite, got {self.weight}"
        )

    @property
    def likelihood(self) -> Likelihood:
        return "tokens"


ObjectiveSettings = Elbo | TotalCorrelation | BetaTC | BagOfWords
