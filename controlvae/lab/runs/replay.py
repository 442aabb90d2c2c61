"""Replay of recorded weights: β(t) of earlier runs as an open-loop schedule.

A replay shows what the controller's β(t) does without feedback.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.experiment import QUANTITY_LABELS, Experiment
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Points

_MAX_POINTS = 120  # a captured graph contains an operation for each


def replay_weight(experiment: Experiment, folders: Sequence[RunFolder]) -> Experiment:
    """Return the experiment with the recorded weight of these runs as its schedule.

    Raises:
        UserError: If a run weighted another term than the experiment does.
    """
    weighted = experiment.objective.controlled_quantity
    for folder in folders:
        if (other := folder.experiment().objective.controlled_quantity) != weighted:
            raise UserError(
                f"{folder.path} recorded the weight of its {QUANTITY_LABELS[other]}, but "
                f"{experiment.name} weights its {QUANTITY_LABELS[weighted]}; "
                "replay a run of the same objective"
            )
    weight = recorded_weight(folders)
    end, steps = min(folder.records()[-1]["step"] for folder in folders), experiment.training.steps
    if end < steps:
        warnings.warn(
            f"the recording ends at step {end:,}; its last weight, {weight.values[-1]:.4g}, "
            f"is used from there to step {steps:,}",
            stacklevel=2,
        )
    return replace(experiment, control=weight)


def recorded_weight(folders: Sequence[RunFolder]) -> Points:
    """Return the mean weight of runs over the steps that all of their logs have."""
    logs = [_window_centres(folder) for folder in folders]
    steps = sorted(set.intersection(*(set(log) for log in logs)))
    if not steps:
        raise UserError(f"the logs of the runs in {folders[0].path.parent} have no step in common")
    means = np.mean([[log[step] for step in steps] for log in logs], axis=0)
    return _merge_windows(np.array(steps), means)


def _merge_windows(steps: np.ndarray, weights: np.ndarray) -> Points:
    """Return a schedule through the log windows, or through means of adjacent ones if there are many.

    The first and the last window are kept, so that the schedule starts and ends as recorded. A
    weight that changes within n / 120 of n windows is smoothed.
    """
    if len(steps) > _MAX_POINTS:
        inner = np.array_split(np.arange(1, len(steps) - 1), _MAX_POINTS - 2)
        groups = [np.array([0]), *inner, np.array([len(steps) - 1])]
        steps = np.array([steps[group].mean() for group in groups])
        weights = np.array([weights[group].mean() for group in groups])
    return Points(tuple(steps.tolist()), tuple(weights.tolist()))


def _window_centres(folder: RunFolder) -> dict[float, float]:
    """Return the mean weight of each log window by the step in its centre."""
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no log to replay")
    ends = [0, *(record["step"] for record in records)]
    pairs = zip(ends, records, strict=False)
    return {(start + record["step"]) / 2: record["beta"] for start, record in pairs}
