"""Presets with the paper's settings, and variants of them that the results compare with."""

from controlvae.paper.presets.images import IMAGE_EXPERIMENTS
from controlvae.paper.presets.shapes2d import SHAPES2D_EXPERIMENTS, SHORT_EXPERIMENTS
from controlvae.paper.presets.shapes3d import SHAPES3D_EXPERIMENTS
from controlvae.paper.presets.text import TEXT_EXPERIMENTS

EXPERIMENTS = [
    *SHAPES2D_EXPERIMENTS,
    *SHORT_EXPERIMENTS,
    *SHAPES3D_EXPERIMENTS,
    *IMAGE_EXPERIMENTS,
    *TEXT_EXPERIMENTS,
]
