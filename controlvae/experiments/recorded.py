"""A weight that runs recorded, to be played again open loop: what did the controller's β(t) do without its feedback?"""

from collections.abc import Sequence

from controlvae.control import Points
from controlvae.errors import UserError
from controlvae.experiments.folder import RunFolder

_POINTS = 120


def recorded_weight(folders: Sequence[RunFolder]) -> Points:
    """The mean weight of these runs over their logs, as far as all of them go, denser where training began."""
    logs = [_middles(folder) for folder in folders]
    steps = sorted(set.intersection(*(set(log) for log in logs)))
    if not steps:
        raise UserError(f"{folders[0].path.parent} holds runs whose logs have no step in common")
    # Evenly in the square root of time: the weight moves most in the beginning.
    wanted = {round((number / (_POINTS - 1)) ** 2 * (len(steps) - 1)) for number in range(_POINTS)}
    chosen = [steps[number] for number in sorted(wanted)]
    return Points(tuple(chosen), tuple(sum(log[step] for log in logs) / len(logs) for step in chosen))


def _middles(folder: RunFolder) -> dict[float, float]:
    """The weight in the middle of each log window, which its mean over the window is."""
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no log to take a weight from")
    ends = [0, *(record["step"] for record in records)]
    return {(before + record["step"]) / 2: record["beta"] for before, record in zip(ends, records, strict=False)}
