"""Watcher of a folder of runs, shared by all event streams."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.concurrency import run_in_threadpool

from controlvae.errors import UserError
from controlvae.lab.dashboard.event_marks import make_marks
from controlvae.lab.dashboard.log_tail import LogTail, max_points, thin, to_columns
from controlvae.lab.dashboard.run_list import RunList
from controlvae.lab.runs.folder import RunFolder

_POLL_SECONDS = 0.5  # between checks of the logs that are shown
_LIST_SHARE = 0.05  # of the time that may go into checks of the list
_WARNING_SECONDS = 0.5  # of one check of the list
_KEEP_SECONDS = 60.0  # that a log stays in memory after its last reader
KINDS = ("log", "validation", "marks")


@dataclass
class SharedLog:
    """Records of one log for all its readers.

    A reader keeps a cursor: a generation and a position. A new generation makes every reader start
    again. It begins when a run is resumed from an earlier step, and when the records are thinned.
    """

    path: Path
    tail: LogTail
    generation: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    last_used: float = 0.0

    def poll(self) -> None:
        """Read the new lines."""
        is_reset, records = self.tail.read()
        if is_reset:
            self.generation, self.records = self.generation + 1, []
        self.records += records
        if self.records and len(self.records) > 2 * max_points(self.records[0]):
            self.generation, self.records = self.generation + 1, list(thin(self.records))

    def content_since(
        self, cursor: tuple[int, int]
    ) -> tuple[tuple[int, int], dict[str, Any] | None]:
        """Return the new cursor, and the records after the old one as columns, if there are any."""
        generation, position = cursor
        is_reset = generation != self.generation
        records = self.records if is_reset else self.records[position:]
        after = self.generation, len(self.records)
        if not records and (not is_reset or generation < 0):
            return after, None
        return after, {"reset": is_reset, "columns": to_columns(records) if records else None}


@dataclass
class SharedMarks:
    """Marks of one run for all its readers. They are sent as a whole, because there are few."""

    folder: RunFolder
    generation: int = 0
    marks: list[dict[str, Any]] = field(default_factory=list)
    last_used: float = 0.0
    stamp: Any = None

    def poll(self) -> None:
        """Read the events again if they have changed."""
        try:
            stat = self.folder.events_file.stat()
            stamp = stat.st_mtime_ns, stat.st_size
            if stamp != self.stamp:
                marks = make_marks(self.folder.events())
                self.generation += marks != self.marks
                self.stamp, self.marks = stamp, marks
        except (OSError, UserError):  # no events yet, or a corrupt file, which the list reports
            return

    def content_since(
        self, cursor: tuple[int, int]
    ) -> tuple[tuple[int, int], dict[str, Any] | None]:
        """Return the new cursor, and all marks if they have changed."""
        after = self.generation, 0
        if cursor == after or (cursor[0] < 0 and not self.marks):
            return after, None
        return after, {"reset": True, "marks": self.marks}


class Watcher:
    """One reader of the folder for all clients. It rests while there are none."""

    def __init__(self, root: Path, stopping: Callable[[], bool]) -> None:
        self.root, self.stopping = root, stopping
        self.runs = RunList(root)
        self.started = uuid4().hex[:8]  # tells versions of an earlier server apart
        self._logs: dict[tuple[str, str], SharedLog | SharedMarks] = {}
        self._followed: dict[object, Collection[str]] = {}
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._next_list = -math.inf
        self._task: asyncio.Task[None] | None = None

    @property
    def version(self) -> str:
        """Version of the list. A page that has it needs no list."""
        return f"{self.started}-{self.runs.version}"

    async def find(self, name: str) -> RunFolder | None:
        """Return the folder of a run, or None. The list is read again for an unknown name."""
        if self.runs.folder(name) is None and name:
            await self._refresh()
        return self.runs.folder(name)

    @contextlib.contextmanager
    def follow(self, names: Collection[str]) -> Any:
        """Read the logs of these runs inside a `with` block."""
        key = object()
        self._followed[key] = names
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            del self._followed[key]

    async def changes(
        self, names: Collection[str], version: str
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield events for a page as long as it listens: kind and content, or "" while idle.

        Args:
            names: Runs whose logs it shows. They may be created later.
            version: Version of the list that it has, or an empty text.
        """
        with self.follow(names):
            if not self.runs.version:
                await self._refresh()
            known: int | None = self._parse_version(version)
            cursors: dict[tuple[str, str], tuple[int, int]] = {}
            while not self.stopping():
                changed = self._changed
                now = self.runs.version
                if known is None:
                    runs = self.runs.summaries()
                    yield "runs", {"root": str(self.root), "version": self.version, "runs": runs}
                elif known != now:
                    runs, removed = self.runs.changes_since(known)
                    yield "changes", {"version": self.version, "runs": runs, "removed": removed}
                known = now
                for kind, content in await self._new_records(names, cursors):
                    yield kind, content
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 2 * _POLL_SECONDS)
                yield "", None

    def _parse_version(self, version: str) -> int | None:
        """Return the number of a version of this server's list, or None."""
        started, _, number = version.partition("-")
        is_known = started == self.started and number.isdecimal() and len(number) < 20
        return int(number) if is_known and int(number) <= self.runs.version else None

    async def _new_records(
        self, names: Collection[str], cursors: dict[tuple[str, str], tuple[int, int]]
    ) -> list[tuple[str, Any]]:
        """Return the events with the records after the cursors, and move these."""
        logs = [log for name in names for log in self._shared_logs(name)]
        if new := [log for key, log in logs if key not in cursors and not log.last_used]:
            await run_in_threadpool(lambda: [log.poll() for log in new])
        events = []
        for (kind, name), log in logs:
            log.last_used = time.monotonic()
            cursor = cursors.get((kind, name), (-1, 0))
            cursors[kind, name], content = log.content_since(cursor)
            if content is not None:
                events.append((kind, {"run": name, **content}))
        return events

    def _shared_logs(self, name: str) -> Iterable[tuple[tuple[str, str], SharedLog | SharedMarks]]:
        folder = self.runs.folder(name)
        if folder is None:
            return
        files = {"log": folder.log_file, "validation": folder.validation_file}
        for kind in KINDS:
            if (kind, name) not in self._logs:
                self._logs[kind, name] = (
                    SharedLog(files[kind], LogTail(files[kind]))
                    if kind in files
                    else SharedMarks(folder)
                )
            yield (kind, name), self._logs[kind, name]

    async def _poll(self) -> None:
        """Read what has changed until the last client has left."""
        while self._followed and not self.stopping():
            if time.monotonic() >= self._next_list:
                await self._refresh()
            else:
                async with self._reading:
                    await run_in_threadpool(self.runs.refresh_some, self._chosen())
            old = time.monotonic() - _KEEP_SECONDS
            self._logs = {key: log for key, log in self._logs.items() if log.last_used > old}
            logs = list(self._logs.values())
            await run_in_threadpool(lambda: [log.poll() for log in logs])  # noqa: B023
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            await asyncio.sleep(_POLL_SECONDS)

    def _chosen(self) -> set[str]:
        """Return the names of the runs that any page shows."""
        return {name for names in self._followed.values() for name in names}

    async def _refresh(self) -> None:
        """Read the list. A long list is read less often."""
        async with self._reading:
            began = time.monotonic()
            await run_in_threadpool(self.runs.refresh, _WARNING_SECONDS, self._chosen())
            took = time.monotonic() - began
            self._next_list = time.monotonic() + took * (1 / _LIST_SHARE - 1)
