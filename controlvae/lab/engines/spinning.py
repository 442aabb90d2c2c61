"""Waiting threads that release their cores while other processes need them.

GNU OpenMP, which torch uses on Linux, lets a thread that waits for the others spin. Alone that is
the fastest way to wait. Next to a busy process it holds a core that is needed, perhaps by the very
thread that is waited for. Environment variables fix the length of spinning when torch is loaded,
which is too early: the other process may come later. But the runtime also shortens it to 100 turns
at any time when it manages more threads than there are cores (documented at `GOMP_SPINCOUNT`). So
an idle team of threads switches spinning off, and its end switches it on again. The team takes no
part in any computation, so results stay the same.
"""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

_SECONDS_BETWEEN_CHECKS = 0.25
# Share of the time in which a thread that could run waits for a core. Alone it is below 0.01, and
# next to one busy process per core about 0.5.
_BUSY_SHARE, _IDLE_SHARE = 0.15, 0.05
_IDLE_CHECKS = 4  # in a row, before threads spin again


@contextmanager
def release_cores_under_load(threads: int) -> Iterator[None]:
    """Keep waiting threads from spinning whenever other processes compete for the cores.

    Does nothing with one thread, with another OpenMP runtime than GNU's, or if the user has set
    `OMP_WAIT_POLICY`.

    Args:
        threads: Number of threads that torch uses.
    """
    if threads < 2 or _gnu_openmp() is None or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    end = threading.Event()
    watcher = threading.Thread(target=_watch, args=(threads, end), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end.set()
        watcher.join()


@contextmanager
def cores_released(threads: int) -> Iterator[None]:
    """Keep waiting threads from spinning within this context.

    Args:
        threads: Number of threads that torch uses.
    """
    runtime = _gnu_openmp()
    if runtime is None:
        yield
        return
    team = _IdleTeam(runtime, threads)
    try:
        yield
    finally:
        team.close()


class _IdleTeam:
    """Idle OpenMP threads: with those of torch, more than there are cores."""

    def __init__(self, runtime: ctypes.CDLL, threads: int) -> None:
        self._size = max(2, (os.cpu_count() or 1) - threads + 2)
        self._runtime = runtime
        self._started, self._end = threading.Event(), threading.Event()
        # OpenMP keeps a team for as long as the thread lives that has started it.
        self._owner = threading.Thread(target=self._hold, daemon=True)
        self._owner.start()
        self._started.wait()

    def _hold(self) -> None:
        # The entry point of `#pragma omp parallel`. Every thread calls free(NULL), which does
        # nothing, and then waits without a core.
        do_nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        self._runtime.GOMP_parallel(do_nothing, None, ctypes.c_uint(self._size), ctypes.c_uint(0))
        self._started.set()
        self._end.wait()

    def close(self) -> None:
        """End the team."""
        self._end.set()
        self._owner.join()


def _watch(threads: int, end: threading.Event) -> None:
    """Start and end an idle team as other processes come and go."""
    runtime = _gnu_openmp()
    assert runtime is not None
    team: _IdleTeam | None = None
    idle_checks = 0
    before, began = _queue_times(), time.monotonic()
    try:
        while not end.wait(_SECONDS_BETWEEN_CHECKS):
            now, ended = _queue_times(), time.monotonic()
            waited = max((now[task] - before.get(task, now[task]) for task in now), default=0.0)
            share = waited / (ended - began)
            before, began = now, ended
            idle_checks = idle_checks + 1 if share < _IDLE_SHARE else 0
            if team is None and share > _BUSY_SHARE:
                team = _IdleTeam(runtime, threads)
            elif team is not None and idle_checks >= _IDLE_CHECKS:
                team.close()
                team = None
    finally:
        if team is not None:
            team.close()


def _queue_times() -> dict[str, float]:
    """Return the seconds that each thread of this process has waited for a core so far."""
    times = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            times[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # it has ended, or the kernel does not count
            continue
    return times


@cache
def _gnu_openmp() -> ctypes.CDLL | None:
    """Return torch's OpenMP runtime if it is GNU's, or None."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        loaded = {line.split(maxsplit=5)[5] for line in lines if "libgomp" in line}
        # Other packages may bring their own copy.
        own = [path for path in loaded if path.startswith(str(Path(torch.__file__).parent))]
        paths = own or list(loaded)
        runtime = ctypes.CDLL(paths[0]) if len(paths) == 1 else None
        return runtime if runtime is not None and hasattr(runtime, "GOMP_parallel") else None
    except OSError:  # not Linux
        return None
