"""What a command asks to train, with the likelihood that suits one's own pictures."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from controlvae.lab.config import Elbo, Experiment, Images, override, preset
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset


def resolve_experiment(name: str, sets: Sequence[str], root: Path | None) -> Experiment:
    """The preset of that name with `sets`, suited to its pictures."""
    return infer_likelihood(override(preset(name), list(sets)), sets, root)


def infer_likelihood(experiment: Experiment, sets: Sequence[str], root: Path | None) -> Experiment:
    """Pictures of one's own that are black and white have Bernoulli's likelihood, unless `sets` names another."""
    given = any(
        text.partition("=")[0].strip() in ("objective", "objective.likelihood") for text in sets
    )
    if (
        given
        or not isinstance(experiment.data, Images)
        or not isinstance(experiment.objective, Elbo)
    ):
        return experiment
    kept = experiment.objective.likelihood
    if kept == "bernoulli" or not isinstance(load_dataset(experiment.data, root), BinaryImages):
        return experiment
    print(
        f"controlvae: likelihood: bernoulli, since these pictures are black and white; "
        f"--set objective.likelihood={kept} keeps the preset's",
        file=sys.stderr,
    )
    return replace(experiment, objective=replace(experiment.objective, likelihood="bernoulli"))
