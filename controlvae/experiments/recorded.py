"""A weight that runs recorded, to be played again open loop: what did the controller's β(t) do without its feedback?"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controlvae.control import Points
from controlvae.errors import UserError
from controlvae.experiments.experiment import HELD, Experiment
from controlvae.experiments.folder import RunFolder

_POINTS = 120


def replayed(experiment: Experiment, folders: Sequence[RunFolder]) -> Experiment:
    """The experiment under the weight of these runs. One that was of something else is refused."""
    own = experiment.objective.holds
    for folder in folders:
        if (other := folder.experiment().objective.holds) != own:
            raise UserError(f"{folder.path} recorded the weight of its {HELD[other]}, and {experiment.name} weighs "
                            f"its {HELD[own]}; replay a run of the same objective")  # fmt: skip
    weight = recorded_weight(folders)
    ends = min(folder.records()[-1]["step"] for folder in folders)
    if ends < experiment.training.steps:
        warnings.warn(
            f"the recording ends at step {ends:,}; its last weight, {weight.values[-1]:.4g}, is held from there to "
            f"step {experiment.training.steps:,}",
            stacklevel=2,
        )
    return replace(experiment, control=weight)


def recorded_weight(folders: Sequence[RunFolder]) -> Points:
    """The mean weight of these runs over their logs, as far as all of them go."""
    logs = [_middles(folder) for folder in folders]
    steps = sorted(set.intersection(*(set(log) for log in logs)))
    if not steps:
        raise UserError(f"{folders[0].path.parent} holds runs whose logs have no step in common")
    mean = np.mean([[log[step] for step in steps] for log in logs], axis=0)
    kept = _corners(np.array(steps), mean)
    return Points(tuple(steps[at] for at in kept), tuple(mean[kept].tolist()))


def _corners(steps: np.ndarray, weights: np.ndarray) -> list[int]:
    """Those of so many points that lines between them follow: the one that is furthest off is added, time and again.

    Off as a share of the weight: evenly spaced points would miss a large weight that falls fast by several per cent.
    """
    kept = sorted({0, len(steps) - 1})
    size = np.maximum(weights, 0.01 * weights.max()) + np.finfo(float).tiny
    while len(kept) < _POINTS:
        off = np.abs(np.interp(steps, steps[kept], weights[kept]) - weights) / size
        if not off.max() > 0:
            break
        kept = sorted([*kept, int(off.argmax())])
    return kept


def _middles(folder: RunFolder) -> dict[float, float]:
    """The weight in the middle of each log window, which its mean over the window is."""
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no log to take a weight from")
    ends = [0, *(record["step"] for record in records)]
    return {(before + record["step"]) / 2: record["beta"] for before, record in zip(ends, records, strict=False)}
