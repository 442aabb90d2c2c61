"""What a run is: an `Experiment`, a value made of small values. Other rooms build data, models and steps from it."""

from dataclasses import dataclass, field
from typing import Literal

from controlvae.lab.config.data import DataSettings, DialogSettings, Shapes2D, TextSettings
from controlvae.lab.config.models import (
    ConvVAEConfig,
    DialogVAEConfig,
    ModelSettings,
    TextVAEConfig,
)
from controlvae.lab.config.validation import check_choices, require
from controlvae.lab.objectives import Elbo, ObjectiveSettings
from controlvae.lab.optimiser import Adam
from controlvae.laws import Constant, Law

Precision = Literal["fp32", "tf32", "bf16"]
QUANTITY_LABELS = {
    "kl": "KL",
    "tc": "total correlation",
    "reconstruction": "reconstruction",
}  # columns of the log, in words


@dataclass(frozen=True)
class Training:
    """How long, on what batches, and how often it is written down. A run is a function of these and its seed."""

    steps: int = 1_500_000
    batch: int = 64
    seed: int = 1
    log_every: int = 500  # steps averaged into one line of the log
    precision: Precision = (
        "bf16"  # of the products on a GPU; a CPU computes in float32 whatever it says
    )
    delayed: bool = (
        False  # a batch is weighed by the KL of those before it, as in the released text program
    )
    validation: int | float = (
        0  # examples to tell when to stop, or below 1 their share: a fixed random choice of the
    )
    # data's own validation part where it has one (Penn Treebank, Switchboard, CelebA), else of the training part, and
    # then not trained on
    validate_every: int = (
        0  # steps between looks at them; 0 is never. The best model so far is kept beside the last
    )

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every"):
            value = getattr(self, name)
            require(0 < value <= 10**12, f"{name} must be positive and at most 10**12, got {value}")
        require(
            0 <= self.validation < 1 or (self.validation > 0 and self.validation % 1 == 0),
            f"validation must be a number of examples, or a share of them below 1, got {self.validation}",
        )
        require(
            self.validate_every >= 0,
            f"validate_every must be zero or positive, got {self.validate_every}",
        )
        require(
            self.validate_every == 0 or self.validation > 0,
            "validate_every needs validation, examples or a share of them; without it set training.validate_every=0",
        )
        require(
            self.validate_every % self.log_every == 0,
            f"validate_every must be a multiple of log_every, got {self.validate_every} and {self.log_every}",
        )
        check_choices(self)
        require(0 <= self.seed < 2**32, f"seed must lie in 0..2**32 - 1, got {self.seed}")


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the numbers of a run."""

    name: str
    about: str = ""
    paper: str = ""  # the table or figure it belongs to
    data: DataSettings = field(default_factory=Shapes2D)
    model: ModelSettings = field(default_factory=ConvVAEConfig)
    objective: ObjectiveSettings = field(default_factory=Elbo)
    control: Law = field(default_factory=lambda: Constant(1.0))
    optimiser: Adam = field(default_factory=Adam)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        text, dialog = isinstance(self.data, TextSettings), isinstance(self.data, DialogSettings)
        fits = (
            isinstance(self.model, TextVAEConfig) == text,
            isinstance(self.model, DialogVAEConfig) == dialog,
        )
        tokens = self.objective.likelihood == "tokens"
        require(
            all(fits) and tokens == (text or dialog),
            "text data goes with model=TextVAE, dialogs with model=DialogVAE, both with objective.likelihood=tokens",
        )
        kind: Literal["image", "text", "dialog"] = (
            "dialog" if dialog else "text" if text else "image"
        )
        self.objective.check_fit(kind, self.control, self.model.latents)

    @property
    def controlled_label(self) -> str:
        """What a set point is of, for people."""
        return QUANTITY_LABELS[self.controlled_quantity]

    @property
    def controlled_quantity(self) -> str:
        """The column of the log that a set point belongs to."""
        return (
            "reconstruction"
            if self.control.controls_reconstruction
            else self.objective.controlled_quantity
        )
