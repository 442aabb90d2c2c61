"""Experiments as settings: their classes, JSON form, overrides and presets."""

from controlvae.lab.config.comparison import changed_fields, method_differences
from controlvae.lab.config.custom import CustomData, CustomModel, CustomOptimiser
from controlvae.lab.config.data import (
    CIFAR10,
    CelebA,
    DataSettings,
    DialogFile,
    Grammar,
    Images,
    PennTreebank,
    Shapes2D,
    Shapes3D,
    SmallTalk,
    Switchboard,
    TextFile,
)
from controlvae.lab.config.describe import SettingDescription, describe_settings
from controlvae.lab.config.experiment import Experiment, Training
from controlvae.lab.config.models import (
    ConvVAEConfig,
    DialogVAEConfig,
    ImageVAEConfig,
    TextVAEConfig,
)
from controlvae.lab.config.overrides import iter_settings, override
from controlvae.lab.config.presets import PRESETS, preset
from controlvae.lab.config.rates import RateRange
from controlvae.lab.config.renames import RenamedWarning, settings_name
from controlvae.lab.config.serialization import from_dict, non_default_fields, to_dict
from controlvae.lab.objectives import (
    BagOfWords,
    BetaTC,
    Elbo,
    Gaussian,
    Likelihood,
    TotalCorrelation,
    describe_likelihood,
)
from controlvae.lab.optimiser import Adam

__all__ = [
    "CIFAR10",
    "PRESETS",
    "Adam",
    "BagOfWords",
    "BetaTC",
    "CelebA",
    "ConvVAEConfig",
    "CustomData",
    "CustomModel",
    "CustomOptimiser",
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
    "RateRange",
    "RenamedWarning",
    "SettingDescription",
    "Shapes2D",
    "Shapes3D",
    "SmallTalk",
    "Switchboard",
    "TextFile",
    "TextVAEConfig",
    "TotalCorrelation",
    "Training",
    "changed_fields",
    "describe_likelihood",
    "describe_settings",
    "from_dict",
    "iter_settings",
    "method_differences",
    "non_default_fields",
    "override",
    "preset",
    "settings_name",
    "to_dict",
]
