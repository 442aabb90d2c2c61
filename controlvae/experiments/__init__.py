"""Experiments as values: what a run is, its JSON and overrides, the presets, and the folder a run lives in."""

from controlvae.experiments.codec import apart, assignments, changed, differences, from_plain, override, to_plain
from controlvae.experiments.data import (
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
from controlvae.experiments.experiment import Experiment, Training
from controlvae.experiments.folder import RunFolder, find_runs
from controlvae.experiments.models import ConvVAE, DialogVAE, ImageVAE, TextVAE
from controlvae.experiments.objectives import (
    Adam,
    BagOfWords,
    BetaTC,
    Elbo,
    Gaussian,
    Likelihood,
    TotalCorrelation,
    likelihood_words,
)
from controlvae.experiments.presets import PRESETS, preset

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
    "RunFolder",
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
    "differences",
    "find_runs",
    "from_plain",
    "likelihood_words",
    "override",
    "preset",
    "to_plain",
]  # fmt: skip
