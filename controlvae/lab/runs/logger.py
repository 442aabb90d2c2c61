"""What a run writes down as it goes: the log, a function of the experiment alone; and events, with the time of day."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from controlvae.errors import RunError, UserError
from controlvae.lab.runs.folder import RunFolder


class RunLogger:
    """The open log of a run. The log itself holds no clock, so that a resumed run's equals an uninterrupted one's."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock = _guarded(folder, lambda: folder.lock_file.open("a"))
        for last in (False, False, True):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last:
                    raise UserError(f"{folder.path} is being trained by another process") from None
                time.sleep(0.05)  # someone may only have looked whether it is
            except OSError as error:
                why = f"cannot lock {folder.lock_file}: {error.strerror}"
                raise RunError(f"{why}; train on a file system that has locks") from None
        _guarded(folder, lambda: _cut_torn_line(folder.events_file))
        self._log: IO[bytes] = _guarded(folder, lambda: folder.log_file.open("ab"))

    @property
    def position(self) -> int:
        """Bytes of log so far; a checkpoint keeps it."""
        return self._log.tell()

    def rewind(self, position: int) -> None:
        """Cuts off what was logged after the checkpoint that training goes on from."""
        if self.folder.log_file.stat().st_size < position:
            raise UserError(
                f"{self.folder.log_file} is shorter than its checkpoint says; was it edited? Put back what was "
                "there, or train in another folder"
            )
        _guarded(self.folder, lambda: self._log.truncate(position))
        self._log.seek(position)

    def record(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        _guarded(self.folder, lambda: (self._log.write(line), self._log.flush()))

    def event(self, kind: str, **details: Any) -> None:
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": kind, **details}

        def append() -> None:
            with self.folder.events_file.open("a") as file:
                file.write(json.dumps(entry) + "\n")

        _guarded(self.folder, append)

    def sync(self) -> None:
        """The log reaches the disk before a checkpoint that counts its bytes."""
        _guarded(self.folder, lambda: os.fsync(self._log.fileno()))

    def close(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # a line that the disk has no room for, of which `record` has told
            self._log.close()
        self._lock.close()


def in_training(folder: RunFolder) -> bool:
    """Whether a process is training a run now."""
    try:
        with folder.lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was never trained
        return False
    return False


def _cut_torn_line(path: Path) -> None:
    """What a crash or a full disk left of a line: the next one would be written onto it."""
    content = path.read_bytes() if path.is_file() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _guarded(folder: RunFolder, write: Callable[[], Any]) -> Any:
    """A full disk or a read-only folder is an error a person can act on."""
    try:
        return write()
    except OSError as error:
        raise RunError(
            f"cannot write in {folder.path}: {error.strerror}; earlier checkpoints are intact, "
            f"make it writable and resume"
        ) from None
