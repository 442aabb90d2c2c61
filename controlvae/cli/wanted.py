"""What a command asks to train: a preset, what is set of it, and the likelihood that suits one's pictures."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from controlvae.data.examples import BinaryImages
from controlvae.data.load import load
from controlvae.experiments import Elbo, Experiment, Images, override, preset


def wanted(name: str, sets: Sequence[str], root: Path | None) -> Experiment:
    """The preset of that name with `sets`; pictures that are black and white have Bernoulli's, unless one is set."""
    experiment = override(preset(name), list(sets))
    if not isinstance(experiment.data, Images) or any(text.startswith("objective") for text in sets):
        return experiment
    if not isinstance(experiment.objective, Elbo) or not isinstance(load(experiment.data, root), BinaryImages):
        return experiment
    kept = experiment.objective.likelihood
    print(
        f"controlvae: likelihood: bernoulli, since these pictures are black and white; "
        f"--set objective.likelihood={kept} keeps the preset's",
        file=sys.stderr,
    )
    return replace(experiment, objective=replace(experiment.objective, likelihood="bernoulli"))
