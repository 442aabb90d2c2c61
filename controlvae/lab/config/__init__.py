"""Experiments as values: what a run is, its JSON, its overrides and the presets."""

from controlvae.lab.config.data import (
    CIFAR10,
    CelebA,
    DataSettings,
    DialogFile,
    Grammar,
    Images,
    PennTreebank,
    Shapes2D,
    SmallTalk,
    Switchboard,
    TextFile,
)
from controlvae.lab.config.experiment import Experiment, Training
from controlvae.lab.config.models import ConvVAE, DialogVAE, ImageVAE, TextVAE
from controlvae.lab.config.objectives import (
    Adam,
    BagOfWords,
    BetaTC,
    Elbo,
    Gaussian,
    Likelihood,
    TotalCorrelation,
    describe_likelihood,
)
from controlvae.lab.config.presets import PRESETS, preset
from controlvae.lab.config.serialization import (
    apart,
    assignments,
    changed,
    from_plain,
    non_default_fields,
    override,
    to_plain,
)

__all__ = [
    "CIFAR10",
    "PRESETS",
    "Adam",
    "BagOfWords",
    "BetaTC",
    "CelebA",
    "ConvVAE",
    "DataSettings",
    "DialogFile",
    "DialogVAE",
    "Elbo",
    "Experiment",
    "Gaussian",
    "Grammar",
    "ImageVAE",
    "Images",
    "Likelihood",
    "PennTreebank",
    "Shapes2D",
    "SmallTalk",
    "Switchboard",
    "TextFile",
    "TextVAE",
    "TotalCorrelation",
    "Training",
    "apart",
    "assignments",
    "changed",
    "describe_likelihood",
    "from_plain",
    "non_default_fields",
    "override",
    "preset",
    "to_plain",
]
