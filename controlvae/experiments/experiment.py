"""What a run is: an `Experiment`, a value made of small values. Other rooms build data, models and steps from it."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from controlvae.control import (
    PI,
    PID,
    Auto,
    Capacity,
    Constant,
    Cyclical,
    Geco,
    LagrangeMultiplier,
    Linear,
    Points,
    Sigmoid,
    Staircase,
)

# The laws an experiment may name in its JSON. `Controller` takes any law; this list is what a file may ask for.
LawSettings = (
    PI | PID | Auto | Capacity | LagrangeMultiplier | Geco | Constant | Linear | Sigmoid | Cyclical | Staircase | Points
)


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
class CIFAR10:
    """CIFAR-10, made larger bilinearly; the paper takes it at 128."""

    size: Literal[32, 64, 128] = 128
    split: Literal["train", "test"] = "train"
    images: int | None = None  # a fixed subset of so many; None is the whole split

    def __post_init__(self) -> None:
        require(self.size in (32, 64, 128), f"size must be 32, 64 or 128, got {self.size}")
        require(self.split in ("train", "test"), f"split must be train or test, got {self.split!r}")
        count = 50_000 if self.split == "train" else 10_000
        require(self.images is None or 0 < self.images <= count, f"images must lie in 1..{count}, got {self.images}")


# How a picture becomes square: its middle as large as it gets, all of it squeezed, or so many pixels of its middle.
Fit = Literal["crop", "stretch"] | int


def _check_fit(fit: Fit) -> None:
    known = fit in ("crop", "stretch") or (isinstance(fit, int) and fit > 0)
    require(known, f"fit must be crop, stretch or a number of pixels, got {fit!r}")


@dataclass(frozen=True)
class CelebA:
    """CelebA's aligned faces, 178x218, with its official partition; the paper squeezes them into 128x128.

    `fit=148` is the crop most others take.
    """

    size: int = 128
    fit: Fit = "stretch"
    split: Literal["train", "valid", "test"] = "train"
    images: int | None = None  # a fixed subset of so many

    def __post_init__(self) -> None:
        require(0 < self.size <= 178, f"size must lie in 1..178, got {self.size}")
        _check_fit(self.fit)
        require(self.split in ("train", "valid", "test"), f"split must be train, valid or test, got {self.split!r}")
        require(self.images is None or self.images > 0, f"images must be positive, got {self.images}")


@dataclass(frozen=True)
class Images:
    """Your own pictures: a folder or zip of image files, or a `.npy` or `.npz` array (`file.npz:name` for one of many).

    Or a folder of Hugging Face's `datasets` (`folder:column` for one of many), whose test split, where it has one, is
    the test part whatever `held_out` says. Files come in the order of their names. `factors` is a table of ground
    truth, a row per picture: a CSV that begins with the factors' names (`table.csv:shape,scale` takes two of them), or
    a NumPy file.
    """

    path: str
    size: int | None = None  # made size x size; None takes the pictures as they are, all of one size
    fit: Fit = "crop"
    factors: str | None = None
    held_out: float = 0.0  # the share kept for testing, a fixed random choice
    part: Literal["train", "test"] = "train"  # of what held_out divides
    images: int | None = None  # a fixed subset of so many
    unreadable: Literal["refuse", "skip"] = "refuse"  # what to do about damaged files

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a folder, a zip, or a .npy or .npz file")
        require(self.size is None or 0 < self.size <= 4096, f"size must lie in 1..4096, got {self.size}")
        _check_fit(self.fit)
        require(self.size is not None or isinstance(self.fit, str), f"fit={self.fit} needs size, e.g. size=64")
        require(0 <= self.held_out < 1, f"held_out must lie in [0, 1), got {self.held_out}")
        require(self.part in ("train", "test"), f"part must be train or test, got {self.part!r}")
        require(self.images is None or self.images > 0, f"images must be positive, got {self.images}")
        require(self.unreadable in ("refuse", "skip"), f"unreadable must be refuse or skip, got {self.unreadable!r}")


@dataclass(frozen=True)
class Grammar:
    """Sentences drawn from a small grammar, with their topic, tense, number and polarity: no download."""

    sentences: int = 10_000
    part: Literal["train", "test"] = "train"

    def __post_init__(self) -> None:
        require(self.sentences > 0, f"sentences must be positive, got {self.sentences}")
        require(self.part in ("train", "test"), f"part must be train or test, got {self.part!r}")


@dataclass(frozen=True)
class PennTreebank:
    """Mikolov's Penn Treebank, a sentence a line."""

    split: Literal["train", "valid", "test"] = "train"

    def __post_init__(self) -> None:
        require(self.split in ("train", "valid", "test"), f"split must be train, valid or test, got {self.split!r}")


@dataclass(frozen=True)
class TextFile:
    """Your own text: UTF-8, one sentence a line, words between white space.

    Or a folder of Hugging Face's `datasets` (`folder:column` for one of many), whose test split, where it has one, is
    the test part whatever `held_out` says.
    """

    path: str
    held_out: float = 0.1  # the share kept for testing, a fixed random choice
    part: Literal["train", "test"] = "train"  # of what held_out divides
    words: int | None = None  # the most frequent words to know; None knows them all
    lower: bool = False  # everything in lower case
    longest: int | None = None  # in words; longer sentences are left out and counted
    pieces: int | None = None  # cut words into so many learnt pieces instead; no word is unknown then

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a text file")
        require(self.pieces is None or self.pieces > 0, f"pieces must be positive, got {self.pieces}")
        require(self.pieces is None or self.words is None, "words and pieces exclude each other")
        require(0 <= self.held_out < 1, f"held_out must lie in [0, 1), got {self.held_out}")
        require(self.part in ("train", "test"), f"part must be train or test, got {self.part!r}")
        require(self.words is None or self.words > 0, f"words must be positive, got {self.words}")
        require(self.longest is None or self.longest > 0, f"longest must be positive, got {self.longest}")


@dataclass(frozen=True)
class SmallTalk:
    """Dialogs drawn from a small grammar, with their topics and acts: no download."""

    dialogs: int = 2_000
    part: Literal["train", "test"] = "train"
    window: int = 4  # utterances before a response that are known, at most

    def __post_init__(self) -> None:
        require(self.dialogs > 0, f"dialogs must be positive, got {self.dialogs}")
        require(self.part in ("train", "test"), f"part must be train or test, got {self.part!r}")
        require(self.window > 0, f"window must be positive, got {self.window}")


@dataclass(frozen=True)
class Switchboard:
    """Telephone conversations with topics and dialog acts, as Zhao et al. 2017 publish them."""

    split: Literal["train", "valid", "test"] = "train"
    words: int | None = 10_000  # the most frequent words to know; None knows them all
    window: int = 9  # utterances before a response that are known, at most
    longest: int | None = 38  # words an utterance is cut to; how many were is said where the data is named

    def __post_init__(self) -> None:
        require(self.split in ("train", "valid", "test"), f"split must be train, valid or test, got {self.split!r}")
        _check_dialogs(self.words, self.window, self.longest)


@dataclass(frozen=True)
class DialogFile:
    """Your own dialogs in the same form: a JSON object a line, with `utts` = [[speaker, text, [act]], ...]."""

    path: str
    held_out: float = 0.1  # the share of dialogs kept for testing, a fixed random choice
    part: Literal["train", "test"] = "train"  # of what held_out divides
    words: int | None = 10_000
    window: int = 9
    longest: int | None = 38

    def __post_init__(self) -> None:
        require(bool(self.path), "path must name a file of dialogs")
        require(0 <= self.held_out < 1, f"held_out must lie in [0, 1), got {self.held_out}")
        require(self.part in ("train", "test"), f"part must be train or test, got {self.part!r}")
        _check_dialogs(self.words, self.window, self.longest)


def _check_dialogs(words: int | None, window: int, longest: int | None) -> None:
    require(words is None or words > 0, f"words must be positive, got {words}")
    require(window > 0, f"window must be positive, got {window}")
    require(longest is None or longest > 0, f"longest must be positive, got {longest}")


PictureSettings = Shapes2D | CIFAR10 | CelebA | Images
TextSettings = Grammar | PennTreebank | TextFile
DialogSettings = SmallTalk | Switchboard | DialogFile
DataSettings = PictureSettings | TextSettings | DialogSettings


@dataclass(frozen=True)
class ConvVAE:
    """The appendix network: stride-2 convolutions down to 4x4, one hidden layer, and their mirror image.

    `dense` adds hidden layers between that one and the latents, as in Burgess et al.'s network.
    """

    latents: int = 10
    channels: tuple[int, ...] = (32, 32, 64, 64)
    hidden: int = 256
    dense: tuple[int, ...] = ()
    initial: Literal["kaiming", "normal"] = "kaiming"  # normal: N(0, 0.02), as the FactorVAE code in use has it

    def __post_init__(self) -> None:
        _check_network(self.latents, self.channels)
        require(self.hidden > 0, f"hidden must be positive, got {self.hidden}")
        require(all(width > 0 for width in self.dense), f"dense must be positive widths, got {self.dense}")


@dataclass(frozen=True)
class ImageVAE:
    """The appendix network for photographs: stride-2 convolutions with batch norm down to a small map, and back."""

    latents: int = 100
    channels: tuple[int, ...] = (32, 32, 64, 64, 256)

    def __post_init__(self) -> None:
        _check_network(self.latents, self.channels)


@dataclass(frozen=True)
class TextVAE:
    """The appendix network for text: an LSTM reads, a Transformer writes; or the other way round."""

    latents: int = 64
    width: int = 256
    encoder: Literal["lstm", "transformer"] = "lstm"
    decoder: Literal["lstm", "transformer"] = "transformer"
    blocks: int = 3
    heads: int = 8
    inner: int = 1024
    dropout: float = 0.2

    def __post_init__(self) -> None:
        for name in ("latents", "width", "blocks", "heads", "inner"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        for name in ("encoder", "decoder"):
            require(getattr(self, name) in ("lstm", "transformer"), f"{name} must be lstm or transformer")
        require(self.width % self.heads == 0, f"width must be a multiple of heads, got {self.width} and {self.heads}")
        require(0 <= self.dropout < 1, f"dropout must lie in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class DialogVAE:
    """The conditional VAE for dialogs: GRUs read the utterances and the context, a GRU writes the response."""

    latents: int = 200
    embedding: int = 200
    utterance: int = 300  # width of the GRUs that read an utterance, one each way
    context: int = 600  # width of the GRU over utterances
    hidden: int = 400  # width of the decoder and of the layers that guess acts and words
    labels: int = 30  # size of a topic and of an act
    acts: bool = True  # whether the response's dialog act is guessed and built on (kgCVAE)

    def __post_init__(self) -> None:
        for name in ("latents", "embedding", "utterance", "context", "hidden", "labels"):
            require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")


ModelSettings = ConvVAE | ImageVAE | TextVAE | DialogVAE


def _check_network(latents: int, channels: tuple[int, ...]) -> None:
    require(latents > 0, f"latents must be positive, got {latents}")
    require(len(channels) > 0, "channels must name at least one layer")
    require(all(width > 0 for width in channels), f"channels must be positive widths, one per layer, got {channels}")


@dataclass(frozen=True)
class Gaussian:
    """Pixels in [0, 1] under one variance for all, with every constant: a density, so its nats may be negative.

    A learnt variance starts at `variance` and is a weight like any other (Rybkin et al., *Simple and effective VAE
    training with calibrated decoders*, 2021). Adam moves its logarithm by its rate at most, so start near the end.
    """

    variance: float = 0.01
    learnt: bool = False

    def __post_init__(self) -> None:
        require(0 < self.variance < math.inf, f"variance must be positive and finite, got {self.variance}")


# -log p(x|z): binary cross-entropy; or the sum of squared errors of the released image code, a Gaussian of variance 1/2
# without its constant; or the cross-entropy of a sentence's tokens; or a Gaussian in full.
Likelihood = Literal["bernoulli", "squared-error", "tokens"] | Gaussian


def _check_likelihood(likelihood: Likelihood) -> None:
    names = get_args(get_args(Likelihood)[0])
    known = isinstance(likelihood, Gaussian) or likelihood in names
    require(known, f"likelihood must be one of {', '.join(names)} or Gaussian(...), got {likelihood!r}")


def likelihood_words(likelihood: Likelihood) -> str:
    """Which it is and what its numbers are, for reports."""
    match likelihood:
        case "bernoulli":
            return "Bernoulli (cross-entropy), nats"
        case "squared-error":
            return "sum of squared errors: nats of a Gaussian of variance 1/2, its constant left out"
        case "tokens":
            return "cross-entropy of tokens, nats"
    variance = "learnt" if likelihood.learnt else f"{likelihood.variance:g}"
    return f"Gaussian, variance {variance}: nats of a density over pixels in [0, 1]"


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba, 2015. The released code's betas; the paper prints 0.99 for the second."""

    rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float | None = None  # the most a gradient's norm over all weights may be; None lets it be

    def __post_init__(self) -> None:
        require(self.clip is None or 0 < self.clip < math.inf, f"clip must be positive and finite, got {self.clip}")
        require(0 < self.rate < math.inf, f"rate must be positive and finite, got {self.rate}")
        require(
            0 <= self.beta1 < 1 and 0 <= self.beta2 < 1,
            f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}",
        )


@dataclass(frozen=True)
class Elbo:
    """Reconstruction + weight x KL, in nats per example."""

    likelihood: Likelihood = "bernoulli"
    free_bits: float = 0.0  # nats a latent may spend: the KL of each, averaged over the batch, costs no less than these

    def __post_init__(self) -> None:
        _check_likelihood(self.likelihood)
        require(0 <= self.free_bits < math.inf, f"free_bits must be zero or positive nats, got {self.free_bits}")

    @property
    def holds(self) -> str:
        """The column of the log that the weight multiplies and, as a rule, a controller holds."""
        return "kl"

    @property
    def extras(self) -> tuple[str, ...]:
        """Columns of the log beyond those of every objective."""
        return ()


@dataclass(frozen=True)
class TotalCorrelation:
    """Reconstruction + KL + weight x total correlation, as a critic estimates it (FactorVAE, Kim & Mnih 2018).

    The critic tells latents of an example from latents shuffled across a second, independent batch.
    """

    likelihood: Likelihood = "bernoulli"
    critic: tuple[int, ...] = (1000, 1000, 1000, 1000, 1000)  # widths of its hidden layers
    critic_optimiser: Adam = field(default_factory=lambda: Adam(1e-4, 0.5, 0.9))

    def __post_init__(self) -> None:
        _check_likelihood(self.likelihood)
        require(len(self.critic) > 0, "critic must name at least one hidden layer")
        require(all(width > 0 for width in self.critic), f"critic must be positive widths, got {self.critic}")

    @property
    def holds(self) -> str:
        return "tc"

    @property
    def extras(self) -> tuple[str, ...]:
        return ("tc", "critic_accuracy")


@dataclass(frozen=True)
class BetaTC:
    """Reconstruction + KL with its total correlation weighed, estimated in the batch (β-TCVAE, Chen et al. 2018)."""

    likelihood: Likelihood = "bernoulli"

    def __post_init__(self) -> None:
        _check_likelihood(self.likelihood)

    @property
    def holds(self) -> str:
        return "tc"

    @property
    def extras(self) -> tuple[str, ...]:
        return ("tc",)


@dataclass(frozen=True)
class BagOfWords:
    """Reconstruction + weight x KL + the cost of guessing a response's words from the code alone, in any order.

    Zhao et al. 2017. That last part is no part of the ELBO: it keeps the code in use.
    """

    weight: float = 1.0  # of the guessing

    def __post_init__(self) -> None:
        require(0 < self.weight < math.inf, f"weight must be positive and finite, got {self.weight}")

    @property
    def likelihood(self) -> Likelihood:
        return "tokens"

    @property
    def holds(self) -> str:
        return "kl"

    @property
    def extras(self) -> tuple[str, ...]:
        return ("bag_of_words",)


ObjectiveSettings = Elbo | TotalCorrelation | BetaTC | BagOfWords

Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Training:
    """How long, on what batches, and how often it is written down. A run is a function of these and its seed."""

    steps: int = 1_500_000
    batch: int = 64
    seed: int = 1
    log_every: int = 500  # steps averaged into one line of the log
    precision: Precision = "bf16"  # of the products on a GPU; a CPU computes in float32 whatever it says
    delayed: bool = False  # a batch is weighed by the KL of those before it, as in the released text program
    validation: int = 0  # examples kept out of training, a fixed random choice, to tell when to stop
    validate_every: int = 0  # steps between looks at them; 0 is never. The best model so far is kept beside the last

    def __post_init__(self) -> None:
        require(self.validation >= 0, f"validation must be zero or a number of examples, got {self.validation}")
        require(self.validate_every >= 0, f"validate_every must be zero or positive, got {self.validate_every}")
        require(
            self.validate_every == 0 or self.validation > 0, "validate_every needs validation, a number of examples"
        )
        require(
            self.validate_every % self.log_every == 0,
            f"validate_every must be a multiple of log_every, got {self.validate_every} and {self.log_every}",
        )
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
    data: DataSettings = field(default_factory=Shapes2D)
    model: ModelSettings = field(default_factory=ConvVAE)
    objective: ObjectiveSettings = field(default_factory=Elbo)
    control: LawSettings = field(default_factory=lambda: Constant(1.0))
    optimiser: Adam = field(default_factory=Adam)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        text, dialog = isinstance(self.data, TextSettings), isinstance(self.data, DialogSettings)
        fits = (isinstance(self.model, TextVAE) == text, isinstance(self.model, DialogVAE) == dialog)
        tokens = self.objective.likelihood == "tokens"
        require(
            all(fits) and tokens == (text or dialog),
            "text data goes with model=TextVAE, dialogs with model=DialogVAE, both with objective.likelihood=tokens",
        )
        require(dialog or not isinstance(self.objective, BagOfWords), "objective=BagOfWords is for dialogs")
        tc = isinstance(self.objective, BetaTC)
        require(not (dialog and tc), "objective=BetaTC knows the prior N(0, I) alone; dialogs have one of their own")
        require(
            self.control.open_loop or self.control.holds_reconstruction or not tc,
            "BetaTC's estimate is off by a constant of about (latents - 1) log(examples): give it an open-loop weight, "
            "such as control=Constant(6), or hold objective=TotalCorrelation()",
        )
        require(
            self.control.open_loop or not getattr(self.objective, "free_bits", 0.0),
            "free_bits set a floor of their own and need an open-loop weight, such as control=Constant(1)",
        )

    @property
    def holds(self) -> str:
        """The column of the log that a set point belongs to."""
        return "reconstruction" if self.control.holds_reconstruction else self.objective.holds
