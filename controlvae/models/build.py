"""From the model settings of an experiment to a freshly initialised module."""

import torch

from controlvae.experiments import ConvVAE as ConvVAESettings
from controlvae.experiments import Experiment
from controlvae.models.conv import ConvVAE

Model = ConvVAE


def build(experiment: Experiment, shape: tuple[int, ...]) -> Model:
    """The model on the host, its weights drawn from the run's seed without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.training.seed)
        match experiment.model:
            case ConvVAESettings(latents, channels, hidden, dense):
                return ConvVAE(shape, latents, channels, hidden, dense)  # type: ignore[arg-type]
    raise TypeError(f"no model for {experiment.model!r}")
