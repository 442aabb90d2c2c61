"""Presets for 3D Shapes: settings chosen on 2D Shapes, with nothing but the data changed."""

from dataclasses import replace

from controlvae.lab.config import Experiment, Shapes3D
from controlvae.lab.config.presets import variant
from controlvae.paper.presets.shapes2d import SHAPES2D_EXPERIMENTS

# Methods whose settings are taken over. The KL is a sum over latents and the target a number of
# nats, so neither depends on the images; the rest is a test of the settings.
_METHODS = (
    "vae",
    "beta",
    "beta-100",
    "control-16",
    "control-18",
    "staggered-18",
    "cascade-18",
    "factor",
    "control-factor",
)
_ABOUT = {
    "staggered-18": "ControlVAE, KL = 18, with staggered latents and an initial β of 80",
}


def _on_shapes3d(name: str) -> Experiment:
    """Return a preset of 2D Shapes on 3D Shapes."""
    base = next(each for each in SHAPES2D_EXPERIMENTS if each.name == f"shapes2d-{name}")
    about = f"{_ABOUT.get(name, base.about)}; as on 2D Shapes"
    return variant(replace(base, data=Shapes3D()), f"shapes3d-{name}", about)


SHAPES3D_EXPERIMENTS = [_on_shapes3d(name) for name in _METHODS]
