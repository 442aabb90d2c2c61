"""Signs of life of the workers of a search, and detection of those that are gone.

A worker rewrites a small file every few seconds. It is gone if the content stays the same for a
minute of the observer's own clock, so the clocks of machines may differ. On the observer's machine
the kernel knows at once: it releases the lock of a file whose process has ended.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from controlvae.errors import RunError

_BEAT_SECONDS = 10.0
_LOST_SECONDS = 60.0  # six beats: a network folder may show a file half a minute late


class Worker:
    """This process as a worker of a search.

    Args:
        folder: Folder of the workers' files.
        beat: Seconds between two signs of life.

    Attributes:
        name: Name of the worker, and of its file.
    """

    def __init__(self, folder: Path, beat: float = _BEAT_SECONDS) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._path, self._beat = folder / self.name, beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._file = -1
        self._beats = 0

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            self._write_beat()
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from None
        with contextlib.suppress(OSError):  # without locks, the beats are enough
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)

    def _keep_beating(self) -> None:
        while not self._stop.wait(self._beat):
            with contextlib.suppress(OSError):  # a full disk: the next beat may succeed
                self._write_beat()

    def _write_beat(self) -> None:
        self._beats += 1
        content = {"machine": _machine(), "pid": os.getpid(), "beats": self._beats}
        os.pwrite(self._file, json.dumps(content).encode() + b"\n", 0)
        os.fsync(self._file)


class WorkerWatch:
    """Observer of other workers.

    Args:
        folder: Folder of the workers' files.
        lost_after: Seconds without a sign of life after which a worker is gone.
    """

    def __init__(self, folder: Path, lost_after: float = _LOST_SECONDS) -> None:
        self._folder, self._lost_after = folder, lost_after
        self._seen: dict[str, tuple[bytes, float]] = {}

    def is_lost(self, name: str) -> bool:
        """Return True if a worker is gone. A worker without a file counts as silent.

        Args:
            name: Name of the worker.
        """
        path, now = self._folder / name, time.monotonic()
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        alive = _holds_lock(path) if _machine() in content.decode(errors="replace") else None
        if alive is not None:
            return not alive
        before, since = self._seen.get(name, (None, now))
        if content != before:
            self._seen[name] = content, now
            return False
        return now - since > self._lost_after

    def forget(self, name: str) -> None:
        """Delete the file of a lost worker.

        Args:
            name: Name of the worker.
        """
        self._seen.pop(name, None)
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()


def _holds_lock(path: Path) -> bool | None:
    """Return whether a process holds the lock of a file, or None where there are no locks."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _machine() -> str:
    """Return a name of this machine since it was started."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot}"
