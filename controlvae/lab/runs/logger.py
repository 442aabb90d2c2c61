"""Writing the log and the events of a run.

The log is a function of the experiment alone. Events carry the time of day.
"""

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
from controlvae.lab.runs.claim import Claim, RunInUseError
from controlvae.lab.runs.claim_files import read_claim, server_time, shows_life, this_machine
from controlvae.lab.runs.folder import RunFolder


class RunLogger:
    """Open log of a run, which locks and claims its folder.

    The lock ends with the process, and is decisive on one machine. The claim decides among machines,
    because locks of a network file system may be local or missing.

    The log holds no clock times, so the log of a resumed run equals that of an uninterrupted one.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock = _write_safely(folder, lambda: folder.lock_file.open("a"))
        try:
            has_lock = _lock_file(self._lock, folder)
            self._claim = _write_safely(folder, lambda: Claim.acquire(folder.claims, has_lock))
        except BaseException:
            self._lock.close()
            raise
        try:
            _write_safely(folder, lambda: _cut_torn_line(folder.events_file))
            self._log: IO[bytes] = _write_safely(folder, lambda: folder.log_file.open("ab"))
        except BaseException:
            self._claim.release()
            self._lock.close()
            raise

    @property
    def position(self) -> int:
        """Length of the log in bytes, saved in checkpoints."""
        return self._log.tell()

    def rewind(self, position: int) -> None:
        """Cut the log at the position of the checkpoint from which training resumes."""
        if self.folder.log_file.stat().st_size < position:
            raise UserError(
                f"{self.folder.log_file} is shorter than its checkpoint says; was it edited? "
                "Restore the file, or train in another folder"
            )
        _write_safely(self.folder, lambda: self._log.truncate(position))
        self._log.seek(position)

    def record(self, record: dict[str, Any]) -> None:
        """Append a line to the log."""
        self._claim.confirm()
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        _write_safely(self.folder, lambda: (self._log.write(line), self._log.flush()))

    def event(self, kind: str, **details: Any) -> None:
        """Append an event with the current time."""
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": kind, **details}

        def append() -> None:
            with self.folder.events_file.open("a") as file:
                file.write(json.dumps(entry) + "\n")

        _write_safely(self.folder, append)

    def sync(self) -> None:
        """Sync the log to disk, before a checkpoint that counts its bytes."""
        self._claim.confirm()
        _write_safely(self.folder, lambda: os.fsync(self._log.fileno()))

    def close(self) -> None:
        """Close the log and unlock the folder."""
        with contextlib.suppress(OSError):  # a full disk: `record` has reported it
            self._log.close()
        self._claim.release()
        self._lock.close()

    def report(self, step: int, speed: float) -> None:
        """Let others see the progress of this run.

        Args:
            step: Newest step.
            speed: Steps per second.
        """
        self._claim.report(step, speed)


def in_training(folder: RunFolder) -> bool:
    """Return True if a process is training the run, on this machine or on another one."""
    try:
        with folder.lock_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was never trained
        return False
    claim = read_claim(folder.claims)
    if claim is None or not claim.held or claim.machine == this_machine():
        return False
    return shows_life(claim, folder.claims, server_time(folder.path))


def _lock_file(lock: IO[Any], folder: RunFolder) -> bool:
    """Lock a run folder on this machine. Return False if its file system has no locks."""
    for last_attempt in (False, False, True):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if last_attempt:
                raise RunInUseError(f"{folder.path} is being trained by another process") from None
            time.sleep(0.05)  # another process may just be testing the lock
        except OSError:
            return False
    return True


def _cut_torn_line(path: Path) -> None:
    """Delete a line that a crash or a full disk left incomplete, before the next is appended."""
    content = path.read_bytes() if path.is_file() else b""
    complete = content.rfind(b"\n") + 1
    if complete < len(content):
        os.truncate(path, complete)


def _write_safely(folder: RunFolder, write: Callable[[], Any]) -> Any:
    """Call `write`, and report a full disk or a read-only folder as a RunError."""
    try:
        return write()
    except OSError as error:
        raise RunError(
            f"cannot write in {folder.path}: {error.strerror}; earlier checkpoints are intact; "
            "make it writable and resume"
        ) from None
