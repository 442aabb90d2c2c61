"""Experiments as values: what a run is, its JSON and overrides, the presets, and the folder a run lives in."""

from controlvae.experiments.codec import from_plain, override, to_plain
from controlvae.experiments.experiment import Adam, ConvVAE, Elbo, Experiment, Shapes2D, Training
from controlvae.experiments.folder import RunFolder, find_runs
from controlvae.experiments.presets import PRESETS, preset

__all__ = [
    "PRESETS", "Adam", "ConvVAE", "Elbo", "Experiment", "RunFolder", "Shapes2D", "Training", "find_runs", "from_plain",
    "override", "preset", "to_plain",
]  # fmt: skip
