"""Logs and events of runs that are read once for all pages."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.dashboard.event_marks import make_marks
from controlvae.lab.dashboard.log_tail import (
    LogTail,
    max_points,
    names_with_numbers,
    thin,
    to_columns,
)
from controlvae.lab.runs.folder import RunFolder

Cursor = tuple[int, int]
START: Cursor = (-1, 0)  # of a reader that has nothing yet


@dataclass
class SharedLog:
    """Records of one log for all its readers.

    A reader keeps a cursor: a generation and a position. A new generation makes every reader start
    again. It begins when a run is resumed from an earlier step, and when the records are thinned.
    """

    tail: LogTail
    last_used: float = 0.0
    _state: tuple[int, Sequence[Mapping[str, Any]]] = (0, ())
    _polling: Lock = field(default_factory=Lock)

    def poll(self) -> None:
        """Read the new lines."""
        with self._polling:
            is_reset, new = self.tail.read()
            if not is_reset and not new:
                return
            generation, records = self._state
            records = [*(() if is_reset else records), *new]
            if records and len(records) > 2 * max_points(records[0]):
                records, is_reset = list(thin(records)), True
            self._state = generation + is_reset, records  # at once, because others read it

    def content_since(
        self, cursor: Cursor, wanted: Collection[str] | None = None
    ) -> tuple[Cursor, dict[str, Any] | None]:
        """Return the new cursor, and the records after the old one as columns, if there are any.

        Args:
            cursor: The cursor of the reader.
            wanted: Names of the columns that it needs. The names of all columns are then added.
        """
        generation, records = self._state
        is_reset = cursor[0] != generation
        new = records if is_reset else records[cursor[1] :]
        after = generation, len(records)
        if not new and (not is_reset or cursor == START):
            return after, None
        content: dict[str, Any] = {
            "reset": is_reset,
            "columns": to_columns(new, wanted) if new else None,
        }
        if wanted is not None:
            content["names"] = names_with_numbers(new) if new else []
        return after, content


@dataclass
class SharedMarks:
    """Marks of one run for all its readers. They are sent as a whole, because there are few."""

    folder: RunFolder
    last_used: float = 0.0
    _state: tuple[int, Sequence[dict[str, Any]]] = (0, ())
    _stamp: Any = None
    _polling: Lock = field(default_factory=Lock)

    def poll(self) -> None:
        """Read the events again if they have changed."""
        with self._polling:
            try:
                stat = self.folder.events_file.stat()
                stamp = stat.st_mtime_ns, stat.st_size
                if stamp == self._stamp:
                    return
                marks = make_marks(self.folder.events())
            except (OSError, UserError):  # no events yet, or a corrupt file, which the list reports
                return
            generation, before = self._state
            self._stamp = stamp
            self._state = generation + (marks != before), marks

    def content_since(self, cursor: Cursor) -> tuple[Cursor, dict[str, Any] | None]:
        """Return the new cursor, and all marks if they have changed."""
        generation, marks = self._state
        after = generation, 0
        if cursor == after or (cursor == START and not marks):
            return after, None
        return after, {"reset": True, "marks": marks}
