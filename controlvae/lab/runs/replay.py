"""A weight that runs recorded, to be played again open loop: what did the controller's β(t) do without its feedback?"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.config.experiment import QUANTITY_LABELS, Experiment
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Points

Pieces = dict[
    tuple[int, int], np.ndarray
]  # from one point of the log to another: how far off those between are

_POINTS = 120
_EXACT = 1e-20  # of squares: rounding
_FITS = 5  # until the fit and what it is weighed by agree


def replayed(experiment: Experiment, folders: Sequence[RunFolder]) -> Experiment:
    """The experiment under the weight of these runs. One that was of something else is refused."""
    own = experiment.objective.controlled_quantity
    for folder in folders:
        if (other := folder.experiment().objective.controlled_quantity) != own:
            raise UserError(
                f"{folder.path} recorded the weight of its {QUANTITY_LABELS[other]}, and {experiment.name} weighs "
                f"its {QUANTITY_LABELS[own]}; replay a run of the same objective"
            )
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
    return _drawn(np.array(steps), np.mean([[log[step] for step in steps] for log in logs], axis=0))


def _drawn(steps: np.ndarray, weights: np.ndarray) -> Points:
    """Lines with so many corners, as close to the weights as such lines come: all of them where they are no more.

    Close as a share of the weight: evenly spaced corners would miss a large weight that falls fast by several per
    cent, and corners at the weights that lie furthest off would follow the noise of a long recording.
    """
    size = np.maximum(np.abs(weights), 0.01 * (np.abs(weights).max() or 1.0))
    off = partial(_off, steps, weights, size)
    pieces: Pieces = {(0, len(steps) - 1): off(0, len(steps) - 1)}
    while len(pieces) < _POINTS - 1:
        worst = max(pieces, key=lambda piece: pieces[piece].sum())
        if pieces[worst].sum() < _EXACT:
            break
        pieces |= _halves(worst, pieces.pop(worst), off)
    corners = steps[sorted({end for piece in pieces for end in piece})]
    hats = np.stack([np.interp(steps, corners, corner) for corner in np.eye(len(corners))], axis=1)
    for _ in range(
        _FITS
    ):  # a share of the weight without its noise: of the noisy one, low weights would count more
        values = np.linalg.lstsq(hats / size[:, None], weights / size, rcond=None)[0]
        size = np.maximum(np.abs(hats @ values), size.min())
    return Points(
        tuple(corners.tolist()), tuple(values.clip(weights.min(), weights.max()).tolist())
    )


def _halves(
    piece: tuple[int, int], off_by: np.ndarray, off: Callable[[int, int], np.ndarray]
) -> Pieces:
    """A piece cut in two, the better of two ways.

    Where half of what it is off by lies on either side, which suits curves and noise; or where it is off most, which
    suits corners.
    """
    begin, end = piece
    cuts = begin + np.array([np.searchsorted(off_by.cumsum(), off_by.sum() / 2), off_by.argmax()])
    ways = [
        {part: off(*part) for part in ((begin, cut), (cut, end))}
        for cut in cuts.clip(begin + 1, end - 1).tolist()
    ]
    return min(ways, key=lambda way: sum(float(each.sum()) for each in way.values()))


def _off(
    steps: np.ndarray, weights: np.ndarray, size: np.ndarray, begin: int, end: int
) -> np.ndarray:
    """How far the weights of a piece lie from the line that fits them best, squared, as a share of their size."""
    if end - begin < 2:
        return np.zeros(end - begin + 1)
    at = slice(begin, end + 1)
    line = np.vander(steps[at] - steps[begin], 2) / size[at, None]
    wanted = weights[at] / size[at]
    return (line @ np.linalg.lstsq(line, wanted, rcond=None)[0] - wanted) ** 2


def _middles(folder: RunFolder) -> dict[float, float]:
    """The weight in the middle of each log window, which its mean over the window is."""
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no log to take a weight from")
    ends = [0, *(record["step"] for record in records)]
    return {
        (before + record["step"]) / 2: record["beta"]
        for before, record in zip(ends, records, strict=False)
    }
