"""Presets: experiments that have a name. Defines the quick ones and looks up all of them."""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from controlvae.errors import unknown_name_error
from controlvae.lab.config.data import Grammar, Images, Shapes2D, Shapes3D, SmallTalk
from controlvae.lab.config.experiment import Experiment, Training
from controlvae.lab.config.models import (
    ConvVAEConfig,
    DialogVAEConfig,
    ImageVAEConfig,
    TextVAEConfig,
)
from controlvae.lab.config.renames import warn_renamed
from controlvae.lab.objectives import BagOfWords, Elbo, TotalCorrelation
from controlvae.lab.optimiser import Adam
from controlvae.laws import PI, Auto, Constant, Points, TuningWarning
from controlvae.laws.base import Target

# Modules with a list EXPERIMENTS, in the order in which presets are listed. They are named here
# and imported on first use, because the lab must not depend on the paper.
PRESET_MODULES = ("controlvae.lab.config.presets", "controlvae.paper.presets")

# Former names of presets. They are still accepted, and runs may still carry them.
RENAMED_PRESETS = {
    "pictures": "images",
    "pictures-vae": "images-vae",
    "shapes2d-priced-18": "shapes2d-weighted-18",
    "shapes2d-in-turn-18": "shapes2d-staggered-18",
}


def variant(
    base: Experiment, name: str, about: str = "", paper: str = "", **parts: Any
) -> Experiment:
    """Return a named copy of an experiment with some of its parts replaced.

    Args:
        base: The experiment to start from.
        name: The name of the new preset.
        about: One line that describes it.
        paper: The table or figure of the paper it belongs to.
        **parts: New values for parts such as `control` or `model`.
    """
    return replace(base, name=name, about=about, paper=paper, **parts)


def unbounded_pi(target: Target, **settings: float) -> PI:
    """Return a PI law without an upper bound on β.

    No `TuningWarning` is raised: some published gains break the paper's own tuning rule.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        return PI(target, beta_max=math.inf, **settings)  # type: ignore[arg-type]


_QUICK = Experiment(
    "shapes2d-quick",
    data=Shapes2D(size=32, images=20_000),
    model=ConvVAEConfig(latents=10, channels=(16, 32, 32), hidden=128),
    optimiser=Adam(rate=1e-3),
    training=Training(steps=3_000, batch=64, log_every=20),
)
# Colour images have three times the pixels and a far larger cross-entropy, but the KL of their
# factors is about the same: the target of 2D Shapes.
_QUICK_3D = replace(_QUICK, name="shapes3d-quick", data=Shapes3D(size=32, images=20_000))
# Long enough for the first three factors to separate. Images with a quarter of the pixels need a
# smaller initial β than 64x64 images.
_LAPTOP = replace(_QUICK, training=Training(steps=12_000, batch=64, log_every=50))
_LAPTOP_RAMP = Points((0, 1_500, 5_000, 9_000, 11_000), (1.0, 2.0, 6.0, 9.0, 10.0))
_USER_IMAGES = Experiment(
    "images",
    data=Images("pictures", size=64, held_out=0.1),
    objective=Elbo("squared-error"),
    model=ImageVAEConfig(latents=100, channels=(32, 64, 64, 256)),
    optimiser=Adam(rate=5e-4),
    training=Training(steps=10_000, batch=64, log_every=100, validation=0.1, validate_every=1_000),
)
_TEXT_QUICK = Experiment(
    "text-quick",
    data=Grammar(),
    objective=Elbo("tokens"),
    optimiser=Adam(rate=2e-3),
    model=TextVAEConfig(latents=16, width=64, blocks=1, heads=4, inner=128, dropout=0.1),
    training=Training(steps=1_500, batch=32, log_every=20),
)
_DIALOG_QUICK = Experiment(
    "dialog-quick",
    data=SmallTalk(),
    objective=BagOfWords(),
    optimiser=Adam(rate=5e-3, clip=5.0),
    model=DialogVAEConfig(latents=16, embedding=32, utterance=32, context=64, hidden=64, labels=8),
    training=Training(steps=1_200, batch=64, log_every=20),
)

EXPERIMENTS = [
    variant(
        _QUICK,
        "shapes2d-quick",
        "ControlVAE at a KL of 18 nats on small shapes: a minute on two cores",
        control=PI(18.0),
    ),
    variant(
        _QUICK,
        "shapes2d-quick-vae",
        "plain VAE on the same small shapes",
        control=Constant(1.0),
    ),
    variant(
        _QUICK,
        "shapes2d-quick-beta",
        "β-VAE (β = 4) on the same small shapes",
        control=Constant(4.0),
    ),
    variant(
        _QUICK_3D,
        "shapes3d-quick",
        "ControlVAE at a KL of 18 nats on small images of 3D Shapes: two minutes on two cores",
        control=Auto(18.0, reach_in=500),
    ),
    variant(
        _QUICK_3D,
        "shapes3d-quick-vae",
        "plain VAE on the same small images",
        control=Constant(1.0),
    ),
    variant(
        _USER_IMAGES,
        "images",
        "ControlVAE on your images: --set data.path=my/folder; see `controlvae target`",
        control=Auto(50.0, reach_in=1_000),
    ),
    variant(_USER_IMAGES, "images-vae", "plain VAE on the same images"),
    variant(
        _TEXT_QUICK,
        "text-quick",
        "ControlVAE at a KL of 4 nats on sentences of a small grammar: a minute on two cores",
        control=Auto(4.0, reach_in=300),
    ),
    variant(_TEXT_QUICK, "text-quick-vae", "plain VAE on the same sentences, which collapses"),
    variant(
        _DIALOG_QUICK,
        "dialog-quick",
        "ControlVAE at a KL of 3 nats on dialogs of a small grammar: a minute on two cores",
        control=Auto(3.0, reach_in=300),
    ),
    variant(_DIALOG_QUICK, "dialog-quick-vae", "plain conditional VAE on the same dialogs"),
    variant(
        _LAPTOP,
        "shapes2d-laptop",
        "ControlVAE with KL = 10 and an initial β of 40: separates factors in minutes",
        control=unbounded_pi(_LAPTOP_RAMP, ki=0.02, beta_init=40.0),
    ),
    variant(
        _LAPTOP,
        "shapes2d-laptop-vae",
        "plain VAE with the same number of steps",
        control=Constant(1.0),
    ),
    variant(
        _LAPTOP,
        "shapes2d-laptop-beta",
        "β-VAE (β = 4) with the same number of steps",
        control=Constant(4.0),
    ),
    variant(
        _LAPTOP,
        "shapes2d-laptop-factor",
        "FactorVAE (γ = 10) with the same number of steps",
        control=Constant(10.0),
        objective=TotalCorrelation(critic=(200, 200, 200)),
    ),
]


class _PresetTable(Mapping[str, Experiment]):
    """All presets by name, also under their former names. Preset modules load on first use."""

    def __getitem__(self, name: str) -> Experiment:
        return _load_presets()[RENAMED_PRESETS.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(_load_presets())

    def __len__(self) -> int:
        return len(_load_presets())


@cache
def _load_presets() -> dict[str, Experiment]:
    modules = [import_module(module) for module in PRESET_MODULES]
    return {experiment.name: experiment for module in modules for experiment in module.EXPERIMENTS}


PRESETS: Mapping[str, Experiment] = _PresetTable()


def preset(name: str) -> Experiment:
    """Return the preset of that name. A former name is accepted with a warning.

    Raises:
        UserError: There is no such preset.
    """
    if name not in PRESETS:
        raise unknown_name_error("preset", name, PRESETS)
    return PRESETS[current_preset_name(name)]


def current_preset_name(name: str) -> str:
    """Return the present name of a preset. Warn if the name is a former one."""
    current = RENAMED_PRESETS.get(name, name)
    if current != name:
        warn_renamed("preset", name, current)
    return current


def preset_folder(root: Path, name: str) -> Path:
    """Return the folder of a preset's runs below `root`.

    It has the preset's former name if only such a folder exists.
    """
    former = [old for old, new in RENAMED_PRESETS.items() if new == name]
    folders = [root / each for each in (name, *former)]
    return next((folder for folder in folders if folder.exists()), folders[0])
