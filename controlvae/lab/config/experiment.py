"""Experiments: all settings that determine the numbers of a run."""

from dataclasses import dataclass, field
from typing import Literal

from controlvae.lab.config.custom import CustomModel, CustomOptimiser
from controlvae.lab.config.data import DataSettings, DialogSettings, Shapes2D, TextSettings
from controlvae.lab.config.models import (
    ConvVAEConfig,
    DialogVAEConfig,
    ModelSettings,
    TextVAEConfig,
)
from controlvae.lab.config.rates import RateRange
from controlvae.lab.config.validation import check_choices, require
from controlvae.lab.objectives import Elbo, ObjectiveSettings
from controlvae.lab.optimiser import Adam
from controlvae.laws import Capacity, Constant, Feedback, Law, Schedule

Precision = Literal["fp32", "tf32", "bf16"]

# Human-readable names of the columns of the log that a law can control.
QUANTITY_LABELS = {
    "kl": "KL",
    "tc": "total correlation",
    "reconstruction": "reconstruction",
}


@dataclass(frozen=True)
class Training:
    """Length of training, batches, logging and validation.

    Attributes:
        steps: The number of optimiser steps.
        batch: The number of examples in a batch.
        seed: The seed of initialisation, batches and noise.
        log_every: The number of steps averaged into one line of the log.
        precision: The precision of matrix products on a GPU. A CPU always computes in float32.
        delayed: Weight a batch by the KL of the batches before it, as the released text code does.
        validation: The number of validation examples, or their fraction if below 1. They are a
            fixed random choice from the published validation split if there is one (Penn Treebank,
            Switchboard, CelebA), and otherwise from the training set, where they are held out.
        validate_every: The number of steps between validations; 0 disables them. The best model so
            far is kept in addition to the last one.
        widths: The widths of text batches: `own` draws them for each seed, `shared` gives all seeds
            the same ones, so that a GPU can train them as one stack. Sentences differ either way.
        ema_weights: The decay of a moving average of the weights, such as 0.999; 0 keeps none.
            User-supplied models only.
        skip: Indices of training examples to leave out, such as corrupt ones.
        half: Where a user-supplied model asks for float16 by `torch.autocast`: `own` follows it,
            `off` computes in float32.
    """

    steps: int = 1_500_000
    batch: int = 64
    seed: int = 1
    log_every: int = 500
    precision: Precision = "bf16"
    delayed: bool = False
    validation: int | float = 0
    validate_every: int = 0
    widths: Literal["own", "shared"] = "own"
    ema_weights: float = 0.0
    skip: tuple[int, ...] = ()
    half: Literal["own", "off"] = "own"

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "log_every"):
            value = getattr(self, name)
            require(0 < value <= 10**12, f"{name} must be positive and at most 10**12, got {value}")
        require(self.batch <= 10**7, f"batch must be at most 10**7, got {self.batch}")
        self._check_validation()
        check_choices(self)
        require(all(index >= 0 for index in self.skip), "skip must hold indices from 0 up")
        require(0 <= self.seed < 2**32, f"seed must lie in 0..2**32 - 1, got {self.seed}")
        require(
            0 <= self.ema_weights < 1, f"ema_weights must lie in [0, 1), got {self.ema_weights}"
        )

    def _check_validation(self) -> None:
        count, interval = self.validation, self.validate_every
        require(
            0 <= count < 1 or (count > 0 and count % 1 == 0),
            f"validation must be a number of examples or a fraction below 1, got {count}",
        )
        require(interval >= 0, f"validate_every must be zero or positive, got {interval}")
        require(
            interval == 0 or count > 0,
            "validate_every needs validation, a number of examples or a fraction; "
            "set training.validation, or training.validate_every=0",
        )
        require(
            interval % self.log_every == 0,
            f"validate_every must be a multiple of log_every, got {interval} and {self.log_every}",
        )


@dataclass(frozen=True)
class Experiment:
    """All settings of a run.

    Attributes:
        name: The name of the preset it comes from.
        about: One line that describes it.
        paper: The table or figure of the paper it belongs to.
        data: The data set.
        model: The network.
        objective: The loss.
        control: The law that sets the weight of the controlled term.
        optimiser: The optimiser.
        training: Length of training, batches, logging and validation.
        rates: The rates of a rate-conditioned model. None trains a model at one set point.
    """

    name: str
    about: str = ""
    paper: str = ""
    data: DataSettings = field(default_factory=Shapes2D)
    model: ModelSettings = field(default_factory=ConvVAEConfig)
    objective: ObjectiveSettings = field(default_factory=Elbo)
    control: Law = field(default_factory=lambda: Constant(1.0))
    optimiser: Adam | CustomOptimiser = field(default_factory=Adam)
    training: Training = field(default_factory=Training)
    rates: RateRange | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, CustomModel):
            self._check_built_in_model()
        if isinstance(self.control, Feedback):
            self.check_target(self.control.target)
        if self.rates is not None:
            self._check_rates(self.rates)

    def _check_rates(self, rates: RateRange) -> None:
        """Raise ValueError if a rate-conditioned model cannot be trained with these settings."""
        batch, law = self.training.batch, self.control
        require(
            batch % rates.bins == 0,
            f"training.batch must be a multiple of rates.bins, got {batch} and {rates.bins}",
        )
        require(
            isinstance(law, Feedback) and not law.controls_reconstruction,
            f"a rate-conditioned model needs a law with a target for the KL, such as "
            f"Auto({rates.middle:.3g}), got {law}",
        )
        require(
            isinstance(self.objective, Elbo)
            and self.objective.free_bits == 0
            and not self.objective.kl_weights,
            "a rate-conditioned model needs objective=Elbo without free_bits and kl_weights",
        )
        require(
            not isinstance(self.data, TextSettings | DialogSettings),
            "a rate-conditioned model needs images or a user-supplied model, got text",
        )

    def _check_built_in_model(self) -> None:
        """Raise ValueError if data, model and objective do not fit together."""
        require(
            isinstance(self.optimiser, Adam) and self.training.ema_weights == 0,
            "built-in models are trained with optimiser=Adam(...) and training.ema_weights=0",
        )
        kind: Literal["image", "text", "dialog"] = "image"
        if isinstance(self.data, DialogSettings):
            kind = "dialog"
        elif isinstance(self.data, TextSettings):
            kind = "text"
        model_fits = (isinstance(self.model, TextVAEConfig) == (kind == "text")) and (
            isinstance(self.model, DialogVAEConfig) == (kind == "dialog")
        )
        likelihood_fits = (self.objective.likelihood == "tokens") == (kind != "image")
        require(
            model_fits and likelihood_fits,
            "text data goes with model=TextVAE, dialogs with model=DialogVAE, "
            "both with objective.likelihood=tokens",
        )
        require(
            kind != "image" or self.training.widths == "own",
            "training.widths=shared is for text and dialogs: all images have one width",
        )
        self.objective.check_fit(kind, self.control, self.model.latents)

    def check_target(self, target: float | Schedule) -> None:
        """Raise ValueError if the law cannot control to a set point, or no KL can have it."""
        assert isinstance(self.control, Feedback)
        self.control.check_target(target)
        if self.controlled_quantity == "kl":
            lowest = target.min_value() if isinstance(target, Schedule) else target
            zero_fits = isinstance(self.control, Capacity)
            expected = "zero or positive" if zero_fits else "positive"
            require(
                lowest > 0 or (zero_fits and lowest == 0),
                f"target must be {expected}, got {target}: a KL is never negative",
            )

    @property
    def adam(self) -> Adam:
        """Settings of Adam. Every built-in model has them."""
        assert isinstance(self.optimiser, Adam)
        return self.optimiser

    @property
    def controlled_label(self) -> str:
        """Human-readable name of the controlled quantity."""
        return QUANTITY_LABELS[self.controlled_quantity]

    @property
    def controlled_quantity(self) -> str:
        """Column of the log that a target refers to."""
        if self.control.controls_reconstruction:
            return "reconstruction"
        return self.objective.controlled_quantity
