"""From the settings of an experiment to freshly initialised modules."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from controlvae.lab.config import (
    BagOfWords,
    ConvVAEConfig,
    DialogVAEConfig,
    Experiment,
    Gaussian,
    ImageVAEConfig,
    TextVAEConfig,
    TotalCorrelation,
)
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.models.base import VAE
from controlvae.lab.models.conv_bn_vae import ImageVAE
from controlvae.lab.models.conv_vae import ConvVAE
from controlvae.lab.models.critic import Critic
from controlvae.lab.models.dialog_vae import DialogVAE
from controlvae.lab.models.text_vae import TextVAE

Model = VAE | TextVAE | DialogVAE
M = TypeVar("M", bound=nn.Module)


def build(experiment: Experiment, examples: Dataset) -> Model:
    """The model for these examples, on the host, its weights drawn from the run's seed."""
    return _seeded(experiment, lambda: _MAKERS[type(experiment.model)](experiment, examples))


def _conv_vae(experiment: Experiment, examples: Dataset) -> VAE:
    return _with_variance(experiment, ConvVAE(examples.shape, **vars(experiment.model)))  # type: ignore[arg-type]


def _image_vae(experiment: Experiment, examples: Dataset) -> VAE:
    settings, shape = experiment.model, examples.shape
    assert isinstance(settings, ImageVAEConfig)
    pixels = (shape[1] >> len(settings.channels)) * (shape[2] >> len(settings.channels))
    if experiment.training.batch * pixels == 1:
        raise ValueError(
            "batch norm needs two values or more: larger training.batch, or fewer model.channels"
        )
    return _with_variance(experiment, ImageVAE(shape, **vars(settings)))  # type: ignore[arg-type]


def _with_variance(experiment: Experiment, vae: VAE) -> VAE:
    likelihood = experiment.objective.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.learnt:
        vae.learn_pixel_variance(likelihood.variance)
    return vae


def _text_vae(experiment: Experiment, examples: Dataset) -> TextVAE:
    assert isinstance(examples, SentenceDataset)
    positions = max(8_192, 4 * (examples.shape[0] + 1))
    return TextVAE(len(examples.vocabulary), positions=positions, **vars(experiment.model))


def _dialog_vae(experiment: Experiment, examples: Dataset) -> DialogVAE:
    assert isinstance(examples, DialogDataset)
    sizes, names = dict(vars(experiment.model)), examples.names
    acts, bag = (
        len(names.acts) if sizes.pop("acts") else 0,
        isinstance(experiment.objective, BagOfWords),
    )
    return DialogVAE(len(names.words), len(names.topics), acts, bag_of_words=bag, **sizes)


# A model's settings have the names of its arguments.
_MAKERS: dict[type, Callable[[Experiment, Dataset], Model]] = {
    ConvVAEConfig: _conv_vae,
    ImageVAEConfig: _image_vae,
    TextVAEConfig: _text_vae,
    DialogVAEConfig: _dialog_vae,
}


def build_critic(experiment: Experiment) -> Critic:
    """The critic of an objective that has one, likewise."""
    assert isinstance(experiment.objective, TotalCorrelation)
    latents, widths = experiment.model.latents, experiment.objective.critic
    return _seeded(experiment, lambda: Critic(latents, widths))


def _seeded(experiment: Experiment, make: Callable[[], M]) -> M:
    """Made with the run's seed, without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.training.seed)
        return make()
