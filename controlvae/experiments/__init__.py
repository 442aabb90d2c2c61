"""Experiments as values: what a run is, its JSON and overrides, the presets, and the folder a run lives in."""

from controlvae.experiments.codec import differences, from_plain, override, to_plain
from controlvae.experiments.experiment import (
    CIFAR10,
    Adam,
    BetaTC,
    ConvVAE,
    DataSettings,
    Elbo,
    Experiment,
    Grammar,
    Images,
    ImageVAE,
    PennTreebank,
    Shapes2D,
    TextFile,
    TextVAE,
    TotalCorrelation,
    Training,
)
from controlvae.experiments.folder import RunFolder, find_runs
from controlvae.experiments.presets import PRESETS, preset

__all__ = [
    "CIFAR10",
    "PRESETS",
    "Adam",
    "BetaTC",
    "ConvVAE",
    "DataSettings",
    "Elbo",
    "Experiment",
    "Grammar",
    "ImageVAE",
    "Images",
    "PennTreebank",
    "RunFolder",
    "Shapes2D",
    "TextFile",
    "TextVAE",
    "TotalCorrelation",
    "Training",
    "differences",
    "find_runs",
    "from_plain",
    "override",
    "preset",
    "to_plain",
]  # fmt: skip
