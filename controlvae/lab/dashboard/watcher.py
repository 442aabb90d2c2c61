"""Watcher of a folder of runs, shared by all event streams."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from starlette.concurrency import run_in_threadpool

from controlvae.lab.dashboard.log_tail import LogTail
from controlvae.lab.dashboard.run_list import RunList
from controlvae.lab.dashboard.shared_log import START, Cursor, SharedLog, SharedMarks
from controlvae.lab.runs.folder import RunFolder

_POLL_SECONDS = 0.5  # between checks of the logs that are shown
_LIST_SHARE = 0.025  # of the time that may go into checks of the list
_MAX_LIST_SECONDS = 5.0  # between two checks of a long list
_FRESH_SECONDS = 0.2  # in which the list is not read twice
_WARNING_SECONDS = 0.25  # of one check
_RUNS_AT_ONCE = 20  # whose logs are read before a page gets them
_KEEP_SECONDS = 60.0  # that a log stays in memory after its last reader
_log = logging.getLogger(__name__)
KINDS = ("log", "validation", "marks")


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
        self._last_list = self._next_list = -math.inf
        self._is_read = False
        self._task: asyncio.Task[None] | None = None

    async def find(self, name: str) -> RunFolder | None:
        """Return the folder of a run, or None. The list is read again for an unknown name."""
        if self.runs.folder(name) is None and name:
            await self._refresh()
        return self.runs.folder(name)

    async def note_change(self, name: str) -> None:
        """Read a run that was just changed, and tell all pages at once."""
        async with self._reading:
            await run_in_threadpool(self.runs.refresh_some, [name])
        self._tell_pages()

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
        self,
        names: Sequence[str],
        version: str,
        columns: Collection[str] | None = None,
        whole: Collection[str] = (),
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield events for a page as long as it listens: kind and content, or "" while idle.

        Args:
            names: Runs whose logs it shows. They may be created later.
            version: Version of the list that it has, or an empty text.
            columns: Columns of the logs that it shows; None for all of them.
            whole: Runs of which it shows all columns all the same.
        """
        with self.follow(names):
            if not self._is_read:
                await self._refresh()
            known: int | None = self._parse_version(version)
            cursors: dict[tuple[str, str], Cursor] = {}
            while not self.stopping():
                changed = self._changed
                now = self.runs.version  # before the list is read, which may be newer
                version = f"{self.started}-{now}"
                if known is None:
                    runs = self.runs.summaries()
                    yield "runs", {"root": str(self.root), "version": version, "runs": runs}
                elif known != now:
                    runs, removed = self.runs.changes_since(known)
                    yield "changes", {"version": version, "runs": runs, "removed": removed}
                known = now
                for at in range(0, len(names), _RUNS_AT_ONCE):
                    wanted = {
                        name: None if name in whole else columns
                        for name in names[at : at + _RUNS_AT_ONCE]
                    }
                    for kind, content in await self._new_records(wanted, cursors):
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
        self,
        wanted: Mapping[str, Collection[str] | None],
        cursors: dict[tuple[str, str], Cursor],
    ) -> list[tuple[str, Any]]:
        """Return the events with the records after the cursors, and move these.

        Args:
            wanted: Columns of the log of each run, None for all of them.
            cursors: Cursors of the page.
        """
        logs = dict(pair for name in wanted for pair in self._shared_logs(name))
        return await run_in_threadpool(_read_new, logs, cursors, wanted)

    def _shared_logs(self, name: str) -> Iterable[tuple[tuple[str, str], SharedLog | SharedMarks]]:
        folder = self.runs.folder(name)
        if folder is None:
            return
        files = {"log": folder.log_file, "validation": folder.validation_file}
        for kind in KINDS:
            if (kind, name) not in self._logs:
                self._logs[kind, name] = (
                    SharedLog(LogTail(files[kind])) if kind in files else SharedMarks(folder)
                )
            yield (kind, name), self._logs[kind, name]

    async def _poll(self) -> None:
        """Read what has changed until the last client has left."""
        while self._followed and not self.stopping():
            try:
                await self._read_once()
            except (
                Exception
            ) as error:  # a folder that moved, a full disk: the next time may be better
                _log.error("%s: %s: %s", self.root, type(error).__name__, error)
            self._tell_pages()
            await asyncio.sleep(_POLL_SECONDS)

    def _tell_pages(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _read_once(self) -> None:
        old = time.monotonic() - _KEEP_SECONDS
        self._logs = {key: log for key, log in self._logs.items() if log.last_used > old}
        logs = list(self._logs.values())
        await run_in_threadpool(lambda: [log.poll() for log in logs])
        if time.monotonic() >= self._next_list:
            await self._refresh()
        async with self._reading:
            chosen = {name for names in self._followed.values() for name in names}
            await run_in_threadpool(self.runs.refresh_some, chosen)
            await run_in_threadpool(self.runs.add_warnings, _WARNING_SECONDS, chosen)

    async def _refresh(self) -> None:
        """Read the list, unless another client just did. A long list is read less often."""
        asked = time.monotonic()
        async with self._reading:
            began = time.monotonic()
            if self._last_list > asked - _FRESH_SECONDS:
                return
            await run_in_threadpool(self.runs.refresh)
            self._is_read = True
            took = time.monotonic() - began
            self._last_list = time.monotonic()
            wait = took * (1 / _LIST_SHARE - 1)
            self._next_list = self._last_list + min(wait, _MAX_LIST_SECONDS)


def _read_new(
    logs: Mapping[tuple[str, str], SharedLog | SharedMarks],
    cursors: dict[tuple[str, str], Cursor],
    wanted: Mapping[str, Collection[str] | None],
) -> list[tuple[str, Any]]:
    """Return the events with the content of logs after the cursors, and move these.

    A log that no page has shown lately is read first.

    Args:
        logs: Logs and marks by their kind and run.
        cursors: Cursors of the page.
        wanted: Columns of the log of each run, None for all of them.
    """
    events = []
    for (kind, name), log in logs.items():
        if not log.last_used:
            log.poll()
        log.last_used = time.monotonic()
        cursor = cursors.get((kind, name), START)
        if isinstance(log, SharedLog):
            columns = wanted[name] if kind == "log" else None
            cursors[kind, name], content = log.content_since(cursor, columns)
        else:
            cursors[kind, name], content = log.content_since(cursor)
        if content is not None:
            events.append((kind, {"run": name, **content}))
    return events
