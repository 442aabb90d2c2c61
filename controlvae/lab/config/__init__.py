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
from controlvae.lab.config.models import (
    ConvVAEConfig,
    DialogVAEConfig,
    ImageVAEConfig,
    TextVAEConfig,
)
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
    changed_fields,
    from_dict,
    iter_settings,
    method_differences,
    non_default_fields,
    override,
    to_dict,
)

__all__ = [
    "CIFAR10",
    "PRESETS",
    "Adam",
    "BagOfWords",
    "BetaTC",
    "CelebA",
    "ConvVAEConfig",
    "DataSettings",
    "DialogFile",
    "DialogVAEConfig",
    "Elbo",
    "Experiment",
    "Gaussian",
    "Grammar",
    "ImageVAEConfig",
    "Images",
    "Likelihood",
    "PennTreebank",
    "Shapes2D",
    "SmallTalk",
    "Switchboard",
    "TextFile",
    "TextVAEConfig",
    "TotalCorrelation",
    "Training",
    "changed_fields",
    "describe_likelihood",
    "from_dict",
    "iter_settings",
    "method_differences",
    "non_default_fields",
    "override",
    "preset",
    "to_dict",
]
