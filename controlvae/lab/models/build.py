"""Construction of freshly initialised models from the settings of an experiment."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from controlvae.errors import UserError
from controlvae.lab.config import (
    ConvVAEConfig,
    DialogVAEConfig,
    Experiment,
    Gaussian,
    ImageVAEConfig,
    TextVAEConfig,
)
from controlvae.lab.data.dataset import Dataset
from controlvae.lab.data.text.dialogs import DialogDataset
from controlvae.lab.data.text.sentences import SentenceDataset
from controlvae.lab.models.base import VAE
from controlvae.lab.models.conv_bn_vae import ConvBatchNormVAE
from controlvae.lab.models.conv_vae import ConvVAE
from controlvae.lab.models.critic import Critic
from controlvae.lab.models.dialog_vae import DialogVAE
from controlvae.lab.models.rate_conditioning import condition_on_rate
from controlvae.lab.models.text_vae import TextVAE

_LARGE_WIDTH = 2_048  # smaller networks fit everywhere

Model = VAE | TextVAE | DialogVAE
M = TypeVar("M", bound=nn.Module)


def build(experiment: Experiment, examples: Dataset) -> Model:
    """Return the model for these examples, on the host, initialised from the run's seed.

    Raises:
        UserError: If its weights would not fit into the memory of this machine.
    """
    make = _BUILDERS[type(experiment.model)]
    if _max_width(experiment) > _LARGE_WIDTH:
        _check_size(lambda: make(experiment, examples))
    return _with_seed(experiment, lambda: _condition(make(experiment, examples), experiment))


def _condition(model: Model, experiment: Experiment) -> Model:
    """Condition a model on the rate if the experiment has a range of rates."""
    if (rates := experiment.rates) is not None:
        condition_on_rate(model, rates.knots, rates.features)
    return model


def _max_width(experiment: Experiment) -> int:
    """Return the largest size among a network's settings."""
    sizes = [
        size if isinstance(size, tuple) else (size,) for size in vars(experiment.model).values()
    ]
    return max((each for size in sizes for each in size if type(each) is int), default=0)


def _check_size(make: Callable[[], nn.Module]) -> None:
    """Raise UserError for a model that does not fit. Tensors on the meta device take no memory."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            parameters = sum(each.numel() for each in make().parameters())
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the model cannot be built: {reason}; choose smaller widths") from None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = 4 * parameters  # in float32; Adam takes three times as much on top
    if needed > total // 2:
        raise UserError(
            f"the model has {parameters / 1e9:,.1f} billion parameters, {needed / 1e9:,.0f} GB; this "
            f"machine has {total / 1e9:,.0f} GB; choose smaller widths"
        )


def build_critic(experiment: Experiment) -> Critic:
    """Return the critic of the experiment's objective, initialised from the run's seed."""
    spec = experiment.objective.critic_spec()
    assert spec is not None
    return _with_seed(experiment, lambda: Critic(experiment.model.latents, spec.widths))


def _build_conv_vae(experiment: Experiment, examples: Dataset) -> VAE:
    return _with_pixel_variance(experiment, ConvVAE(examples.shape, **vars(experiment.model)))  # type: ignore[arg-type]


def _build_conv_bn_vae(experiment: Experiment, examples: Dataset) -> VAE:
    settings, shape = experiment.model, examples.shape
    assert isinstance(settings, ImageVAEConfig)
    pixels = (shape[1] >> len(settings.channels)) * (shape[2] >> len(settings.channels))
    if experiment.training.batch * pixels == 1:
        raise ValueError(
            "batch norm needs at least two values per channel, got one; "
            "raise training.batch, or use fewer model.channels"
        )
    return _with_pixel_variance(experiment, ConvBatchNormVAE(shape, **vars(settings)))  # type: ignore[arg-type]


def _with_pixel_variance(experiment: Experiment, vae: VAE) -> VAE:
    likelihood = experiment.objective.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.learnt:
        vae.learn_pixel_variance(likelihood.variance)
    return vae


def _build_text_vae(experiment: Experiment, examples: Dataset) -> TextVAE:
    assert isinstance(examples, SentenceDataset)
    positions = max(8_192, 4 * (examples.shape[0] + 1))
    return TextVAE(len(examples.vocabulary), positions=positions, **vars(experiment.model))


def _build_dialog_vae(experiment: Experiment, examples: Dataset) -> DialogVAE:
    assert isinstance(examples, DialogDataset)
    settings, names = dict(vars(experiment.model)), examples.names
    acts = len(names.acts) if settings.pop("acts") else 0
    bag_of_words = experiment.objective.needs_bag_of_words
    return DialogVAE(
        len(names.words), len(names.topics), acts, bag_of_words=bag_of_words, **settings
    )


# The fields of a model's settings have the names of the module's arguments.
_BUILDERS: dict[type, Callable[[Experiment, Dataset], Model]] = {
    ConvVAEConfig: _build_conv_vae,
    ImageVAEConfig: _build_conv_bn_vae,
    TextVAEConfig: _build_text_vae,
    DialogVAEConfig: _build_dialog_vae,
}


def _with_seed(experiment: Experiment, make: Callable[[], M]) -> M:
    """Call `make` under the run's seed, without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.training.seed)
        return make()
