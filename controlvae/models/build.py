"""From the settings of an experiment to freshly initialised modules."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from controlvae.data.dialog import Dialogs, Names
from controlvae.data.examples import Examples
from controlvae.experiments import BagOfWords, Experiment, Gaussian, TotalCorrelation
from controlvae.experiments import ConvVAE as ConvVAESettings
from controlvae.experiments import DialogVAE as DialogVAESettings
from controlvae.experiments import ImageVAE as ImageVAESettings
from controlvae.experiments import TextVAE as TextVAESettings
from controlvae.models.conv import ConvVAE
from controlvae.models.critic import Critic
from controlvae.models.dialog import DialogVAE
from controlvae.models.image import ImageVAE
from controlvae.models.text import TextVAE
from controlvae.models.vae import VAE

Model = VAE | TextVAE | DialogVAE
M = TypeVar("M", bound=nn.Module)


def build(experiment: Experiment, shape: tuple[int, ...], vocabulary: int = 0) -> VAE | TextVAE:
    """The model on the host, its weights drawn from the run's seed. `shape` is an example's, `vocabulary` a text's."""
    match experiment.model:
        case TextVAESettings(latents, width, encoder, decoder, blocks, heads, inner, dropout):
            sizes = (latents, width, encoder, decoder, blocks, heads, inner, dropout)
            return _seeded(experiment, lambda: TextVAE(vocabulary, *sizes, positions=max(8_192, 4 * (shape[0] + 1))))
        case ConvVAESettings(latents, channels, hidden, dense, initial):
            vae: VAE = _seeded(experiment, lambda: ConvVAE(shape, latents, channels, hidden, dense, initial))  # type: ignore[arg-type]
        case ImageVAESettings(latents, channels):
            pixels = (shape[1] >> len(channels)) * (shape[2] >> len(channels))
            if experiment.training.batch * pixels == 1:
                raise ValueError("batch norm needs two values or more: larger training.batch, or fewer model.channels")
            vae = _seeded(experiment, lambda: ImageVAE(shape, latents, channels))  # type: ignore[arg-type]
        case _:
            raise TypeError(f"no model for {experiment.model!r}")
    likelihood = experiment.objective.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.learnt:
        vae.learn_pixel_variance(likelihood.variance)
    return vae


def build_for(experiment: Experiment, examples: Examples) -> Model:
    """The model for these examples, whatever they are."""
    if isinstance(examples, Dialogs):
        return _seeded(experiment, lambda: _dialog_vae(experiment, examples.names))
    return build(experiment, examples.shape, len(getattr(examples, "vocabulary", ())))


def _dialog_vae(experiment: Experiment, names: Names) -> DialogVAE:
    settings = experiment.model
    assert isinstance(settings, DialogVAESettings)
    acts, bag = len(names.acts) if settings.acts else 0, isinstance(experiment.objective, BagOfWords)
    sizes = (settings.latents, settings.embedding, settings.utterance, settings.context, settings.hidden)
    return DialogVAE(len(names.words), len(names.topics), acts, *sizes, settings.labels, bag)


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
