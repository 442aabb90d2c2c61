"""Choosing loggers: names, classes, functions or objects of the user."""

from collections.abc import Sequence
from typing import Any

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.trackers.base import Tracker, TrackerFactory
from controlvae.lab.training.trackers.csv import CSV
from controlvae.lab.training.trackers.mlflow import MLflow
from controlvae.lab.training.trackers.tensorboard import TensorBoard
from controlvae.lab.training.trackers.wandb import WandB

TRACKERS: dict[str, TrackerFactory] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "csv": CSV,
}
LoggerSpec = str | Tracker | TrackerFactory | Sequence[str | Tracker | TrackerFactory] | None


def make_trackers(spec: LoggerSpec) -> tuple[TrackerFactory, ...]:
    """Return functions that open the loggers of a run folder.

    Packages are checked here, before any run folder is created.

    Args:
        spec: A name of `TRACKERS`, a class or function that takes a `RunFolder`, an object with
            `write(record)` and `close()`, a list of these, or None.

    Raises:
        UserError: If a name is unknown, a package is missing, or a value is none of these.
    """
    if spec is None:
        return ()
    if not isinstance(spec, list | tuple):
        return (_make_factory(spec),)
    return tuple(dict.fromkeys(map(_make_factory, spec)))  # a name twice is one logger


def _make_factory(spec: Any) -> TrackerFactory:
    if isinstance(spec, str):
        if spec not in TRACKERS:
            raise unknown_name_error("logger", spec, TRACKERS)
        spec = TRACKERS[spec]
    if not isinstance(spec, type) and isinstance(spec, Tracker):
        return _UserObject(spec)
    if not callable(spec):
        raise UserError(
            f"logger takes {', '.join(TRACKERS)}, a class or function of a run folder, or an "
            f"object with write(record) and close(), got {spec!r}"
        )
    check = getattr(spec, "check", None)
    if callable(check):
        check()
    return spec


class _UserObject:
    """Factory that hands out an object of the user, which serves one run."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.__name__ = type(tracker).__name__

    def __call__(self, folder: RunFolder) -> Tracker:
        return self._tracker


def require_tracker_per_run(trackers: Sequence[TrackerFactory], runs: int) -> None:
    """Raise UserError if an object of the user would get the records of several runs."""
    for tracker in trackers:
        if runs > 1 and isinstance(tracker, _UserObject):
            raise UserError(
                f"the logger object {tracker.__name__} serves one run, but there are {runs}; "
                "give its class, or a function of the run folder, so that each run has one"
            )
