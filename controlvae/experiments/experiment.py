"""What a run is: an `Experiment`, a value made of small values. Other rooms build data, models and steps from it."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from controlvae.control import PI, PID, Capacity, Constant, Cyclical, LagrangeMultiplier, Linear, Sigmoid, Staircase

# The laws an experiment may name in its JSON. `Controller` takes any law; this list is what a file may ask for.
LawSettings = PI | PID | Capacity | LagrangeMultiplier | Constant | Linear | Sigmoid | Cyclical | Staircase


def require(condition: bool, message: str) -> None:
    """Settings are checked once, where they are made, and the message gives the value received."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Shapes2D:
    """2D Shapes (dSprites): rendered from their factors, or read from the original file where it is at hand."""

    size: Literal[64, 32] = 64
    images: int | None = None  # a seeded subset of so many; None is all 737,280

    def __post_init__(self) -> None:
        require(self.size in (64, 32), f"size must be 64 or 32, got {self.size}")
        require(self.images is None or 0 < self.images <= 737_280, f"images must lie in 1..737280, got {self.images}")


@dataclass(frozen=True)
class ConvVAE:
    """The appendix network: stride-2 convolutions down to 4x4, one hidden layer, and their mirror image.

    `dense` adds hidden layers between that one and the latents, as in Burgess et al.'s network.
    """

    latents: int = 10
    channels: tuple[int, ...] = (32, 32, 64, 64)
    hidden: int = 256
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(self.latents > 0, f"latents must be positive, got {self.latents}")
        require(self.hidden > 0, f"hidden must be positive, got {self.hidden}")
        for name, widths in (("channels", self.channels), ("dense", self.dense)):
            require(all(width > 0 for width in widths), f"{name} must be positive widths, one per layer, got {widths}")
        require(len(self.channels) > 0, "channels must name at least one layer")


@dataclass(frozen=True)
class Elbo:
    """Reconstruction + weight x KL, in nats per example."""

    likelihood: Literal["bernoulli"] = "bernoulli"

    def __post_init__(self) -> None:
        require(self.likelihood == "bernoulli", f"likelihood must be 'bernoulli', got {self.likelihood!r}")


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba, 2015. The released code's betas; the paper prints 0.99 for the second."""

    rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999

    def __post_init__(self) -> None:
        require(0 < self.rate < math.inf, f"rate must be positive and finite, got {self.rate}")
        require(
            0 <= self.beta1 < 1 and 0 <= self.beta2 < 1,
            f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}",
        )


Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Training:
    """How long, on what batches, and how often it is written down. A run is a function of these and its seed."""

    steps: int = 1_500_000
    batch: int = 64
    seed: int = 1
    log_every: int = 500  # steps averaged into one line of the log
    precision: Precision = "bf16"  # of the products on a GPU; a CPU computes in float32 whatever it says

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every"):
            value = getattr(self, name)
            require(0 < value <= 10**12, f"{name} must be positive and at most 10**12, got {value}")
        require(self.precision in get_args(Precision), f"precision must be fp32, tf32 or bf16, got {self.precision!r}")
        require(0 <= self.seed < 2**32, f"seed must lie in 0..2**32 - 1, got {self.seed}")


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers of a run."""

    name: str
    about: str = ""
    paper: str = ""  # the table or figure it belongs to
    data: Shapes2D = field(default_factory=Shapes2D)
    model: ConvVAE = field(default_factory=ConvVAE)
    objective: Elbo = field(default_factory=Elbo)
    control: LawSettings = field(default_factory=lambda: Constant(1.0))
    optimiser: Adam = field(default_factory=Adam)
    training: Training = field(default_factory=Training)
