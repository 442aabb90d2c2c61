"""Plain modules that take plain values."""

from controlvae.models.build import Model, build
from controlvae.models.conv import ConvVAE, Posterior

__all__ = ["ConvVAE", "Model", "Posterior", "build"]
