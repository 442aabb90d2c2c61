"""Opening the loggers of runs, and keeping their failures away from training."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.trackers.base import Tracker, TrackerFactory

WriteRecords = Callable[[Sequence[dict[str, Any] | None]], None]


class GuardedTracker:
    """Tracker whose failure is a warning: training continues without it.

    `log.jsonl` has every record, so nothing of the run is lost.
    """

    def __init__(self, factory: TrackerFactory, folder: RunFolder) -> None:
        self._folder, self._tracker = folder, None
        self._name = getattr(factory, "__name__", type(factory).__name__)
        self._tracker = self._call("could not start", lambda: factory(folder))

    def write(self, record: dict[str, Any]) -> None:
        """Write one record, unless the tracker has failed before."""
        tracker: Tracker | None = self._tracker
        if tracker is not None:
            self._call("failed", lambda: tracker.write(record))

    def close(self) -> None:
        """Close the tracker, unless it has failed before."""
        tracker: Tracker | None = self._tracker
        if tracker is not None:
            self._call("could not close", tracker.close)
        self._tracker = None

    def _call(self, failure: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            self._tracker = None
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            warnings.warn(
                f"{self._folder.path}: logger {self._name} {failure} ({reason}); "
                "training continues without it",
                stacklevel=3,
            )
            return None


@contextmanager
def open_trackers(
    factories: Sequence[TrackerFactory], folders: Sequence[RunFolder]
) -> Iterator[WriteRecords]:
    """Open every logger for every run, and close them at the end.

    Args:
        factories: Loggers, from `make_trackers`.
        folders: Runs that train side by side. Their logs end where training resumes.

    Yields:
        A function that writes the new record of each run. None is skipped.
    """
    with ExitStack() as stack:
        opened: list[list[GuardedTracker]] = []
        for folder in folders:
            opened.append([])
            for factory in factories:
                tracker = GuardedTracker(factory, folder)
                stack.callback(tracker.close)
                opened[-1].append(tracker)

        def write(records: Sequence[dict[str, Any] | None]) -> None:
            for trackers, record in zip(opened, records, strict=True):
                if record is None:
                    continue
                for tracker in trackers:
                    tracker.write(record)

        yield write
