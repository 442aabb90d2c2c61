"""Models as plain modules whose arguments are plain values."""

from controlvae.lab.models.build import Model, build, build_critic
from controlvae.lab.models.conv_bn_vae import ConvBatchNormVAE
from controlvae.lab.models.conv_vae import ConvVAE
from controlvae.lab.models.critic import Critic
from controlvae.lab.models.dialog_vae import DialogVAE
from controlvae.lab.models.text_vae import TextVAE

__all__ = [
    "ConvBatchNormVAE",
    "ConvVAE",
    "Critic",
    "DialogVAE",
    "Model",
    "TextVAE",
    "build",
    "build_critic",
]
