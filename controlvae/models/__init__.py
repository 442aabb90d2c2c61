"""Plain modules that take plain values."""

from controlvae.models.build import Model, build, build_critic
from controlvae.models.conv import ConvVAE
from controlvae.models.critic import Critic
from controlvae.models.dialog import DialogVAE
from controlvae.models.image import ImageVAE
from controlvae.models.text import TextVAE
from controlvae.models.vae import Posterior

__all__ = [
    "ConvVAE", "Critic", "DialogVAE", "ImageVAE", "Model", "Posterior", "TextVAE", "build", "build_critic",
]  # fmt: skip
