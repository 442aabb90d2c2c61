"""Replay of recorded weights: β(t) of earlier runs as an open-loop schedule.

A replay shows what the controller's β(t) does without feedback.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.experiment import QUANTITY_LABELS, Experiment
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Points

# Squared relative errors of the log points between the two ends of a segment.
Segments = dict[tuple[int, int], np.ndarray]

_MAX_POINTS = 120
_ROUNDING_ERROR = 1e-20  # sum of squares
_REWEIGHTED_FITS = 5  # until the fit and its weights agree


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
    return _fit_points(np.array(steps), means)


def _fit_points(steps: np.ndarray, weights: np.ndarray) -> Points:
    """Fit a piecewise linear schedule of at most 120 points, exactly if there are fewer weights.

    The fit minimises relative errors. Evenly spaced points would miss a large weight that falls
    fast by several per cent. Points at the weights with the largest errors would follow the noise
    of a long recording.
    """
    size = np.maximum(np.abs(weights), 0.01 * (np.abs(weights).max() or 1.0))
    errors = partial(_segment_errors, steps, weights, size)
    segments: Segments = {(0, len(steps) - 1): errors(0, len(steps) - 1)}
    while len(segments) < _MAX_POINTS - 1:
        worst = max(segments, key=lambda segment: segments[segment].sum())
        if segments[worst].sum() < _ROUNDING_ERROR:
            break
        segments |= _split(worst, segments.pop(worst), errors)
    corners = steps[sorted({end for segment in segments for end in segment})]
    hats = np.stack([np.interp(steps, corners, corner) for corner in np.eye(len(corners))], axis=1)
    # Errors are relative to the fitted weight. Relative to the noisy one, low weights count more.
    for _ in range(_REWEIGHTED_FITS):
        values = np.linalg.lstsq(hats / size[:, None], weights / size, rcond=None)[0]
        size = np.maximum(np.abs(hats @ values), size.min())
    values = values.clip(weights.min(), weights.max())
    return Points(tuple(corners.tolist()), tuple(values.tolist()))


def _split(
    segment: tuple[int, int], errors: np.ndarray, fit: Callable[[int, int], np.ndarray]
) -> Segments:
    """Split a segment in two, at the better of two places.

    One place has half of the error on either side, which suits curves and noise. The other has the
    largest error, which suits corners.
    """
    begin, end = segment
    cuts = begin + np.array([np.searchsorted(errors.cumsum(), errors.sum() / 2), errors.argmax()])
    options = [
        {half: fit(*half) for half in ((begin, cut), (cut, end))}
        for cut in cuts.clip(begin + 1, end - 1).tolist()
    ]
    return min(options, key=lambda halves: sum(float(each.sum()) for each in halves.values()))


def _segment_errors(
    steps: np.ndarray, weights: np.ndarray, size: np.ndarray, begin: int, end: int
) -> np.ndarray:
    """Return the squared relative errors of a segment's best line."""
    if end - begin < 2:
        return np.zeros(end - begin + 1)
    inside = slice(begin, end + 1)
    line = np.vander(steps[inside] - steps[begin], 2) / size[inside, None]
    scaled = weights[inside] / size[inside]
    return (line @ np.linalg.lstsq(line, scaled, rcond=None)[0] - scaled) ** 2


def _window_centres(folder: RunFolder) -> dict[float, float]:
    """Return the mean weight of each log window by the step in its centre."""
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no log to replay")
    ends = [0, *(record["step"] for record in records)]
    pairs = zip(ends, records, strict=False)
    return {(start + record["step"]) / 2: record["beta"] for start, record in pairs}
