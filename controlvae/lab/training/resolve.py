"""Resolving what to train: a preset or an experiment, with overrides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from controlvae.lab.config import Elbo, Experiment, Images, override, preset
from controlvae.lab.data.dataset import BinaryImages
from controlvae.lab.data.registry import load_dataset

Overrides = Mapping[str, Any] | Sequence[str] | None


def as_assignments(overrides: Overrides) -> list[str]:
    """Return overrides as `part.field=value` texts.

    Args:
        overrides: Mapping such as `{"control.target": 20}`, or texts such as `control.target=20`.
    """
    if isinstance(overrides, Mapping):
        values = {path: v if isinstance(v, str) else repr(v) for path, v in overrides.items()}
        return [f"{path}={value}" for path, value in values.items()]
    return list(overrides or [])


def resolve_experiment(
    source: str | Experiment,
    overrides: Overrides,
    root: Path | None,
    note: Callable[[str], None],
) -> Experiment:
    """Return a preset or experiment with overrides, and the likelihood that fits its images.

    Args:
        source: Name of a preset, or an experiment.
        overrides: Settings to change.
        root: Data folder that is searched first.
        note: Receives a message if the likelihood is changed.
    """
    experiment = preset(source) if isinstance(source, str) else source
    assignments = as_assignments(overrides)
    return infer_likelihood(override(experiment, assignments), assignments, root, note)


def infer_likelihood(
    experiment: Experiment,
    assignments: Sequence[str],
    root: Path | None,
    note: Callable[[str], None],
) -> Experiment:
    """Return the experiment with a Bernoulli likelihood if the user's images are black and white.

    Args:
        experiment: Experiment with its overrides applied.
        assignments: The overrides. A likelihood among them is kept.
        root: Data folder that is searched first.
        note: Receives a message if the likelihood is changed.
    """
    paths = {text.partition("=")[0].strip() for text in assignments}
    data, objective = experiment.data, experiment.objective
    if paths & {"objective", "objective.likelihood"}:
        return experiment
    if not isinstance(data, Images) or not isinstance(objective, Elbo):
        return experiment
    if objective.likelihood == "bernoulli" or not isinstance(
        load_dataset(data, root), BinaryImages
    ):
        return experiment
    note(
        "likelihood: bernoulli, because these images are black and white; "
        f"--set objective.likelihood={objective.likelihood} keeps the preset's"
    )
    return replace(experiment, objective=replace(objective, likelihood="bernoulli"))
