"""Unattended training: a command in a process of its own, which is resumed if it is killed.

The supervising process waits for one other process and does nothing else. It is no daemon: it ends
with the command, and if it is killed itself, training saves and stops.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

UNATTENDED_VARIABLE = "CONTROLVAE_UNATTENDED"  # folder in which training names its runs
KILLED_VARIABLE = "CONTROLVAE_KILLED"  # what ended the process before this one
_RUNS = "runs.txt"
_MAX_IDLE_STARTS = 3  # starts in a row that saved no further step
_DELIBERATE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl


def note_runs(paths: Sequence[Path]) -> None:
    """Tell the process that supervises this one which runs it trains.

    Args:
        paths: Run folders.
    """
    folder = os.environ.get(UNATTENDED_VARIABLE)
    if folder:
        text = os.path.commonpath([path.absolute() for path in paths])
        temporary = Path(folder, f".{_RUNS}")
        temporary.write_text(text)
        temporary.replace(Path(folder, _RUNS))


def train_unattended(
    first: Sequence[str], resume: Callable[[str], Sequence[str]], say: Callable[[str], None]
) -> int:
    """Run a training command until it ends by itself, resuming it if it is killed.

    Args:
        first: Words of the command that starts training.
        resume: Returns the words of the command that resumes the runs at a path.
        say: Receives a line for each restart.

    Returns:
        The exit status of the last process, or 1 if it is killed again and again without progress.
    """
    with tempfile.TemporaryDirectory(prefix="controlvae-unattended-") as folder:
        noted = Path(folder, _RUNS)
        words, reason, idle, best = list(first), "", 0, -1
        while True:
            status = _wait(words, folder, reason)
            if status >= 0 or -status in _DELIBERATE:
                return status if status >= 0 else 128 - status
            reason = f"the process was ended by {signal.Signals(-status).name}"
            path = noted.read_text() if noted.is_file() else ""
            step = _saved_step(Path(path)) if path else -1
            idle = 0 if step > best else idle + 1
            best = max(best, step)
            if idle >= _MAX_IDLE_STARTS:
                say(f"{reason}, {idle} times in a row without a new checkpoint; giving up")
                return 1
            words = list(resume(path)) if path else list(first)
            say(f"{reason}; {'resuming ' + path if path else 'starting again'}")


def _wait(words: Sequence[str], folder: str, reason: str) -> int:
    """Run one process to its end and return its status, negative for a signal."""
    environment = {**os.environ, UNATTENDED_VARIABLE: folder, KILLED_VARIABLE: reason}
    command = [sys.executable, "-m", "controlvae", *words]
    process = subprocess.Popen(command, env=environment, preexec_fn=_end_with_parent)  # noqa: PLW1509  it has one thread

    def forward(number: int, _frame: object) -> None:
        process.send_signal(number)

    # Ctrl-C reaches the process from the terminal. It saves, and this one waits for it.
    previous = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
    }
    try:
        return process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Let Linux send SIGTERM to this process when its parent dies, so that it saves and stops."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent may ignore it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _saved_step(path: Path) -> int:
    """Return the largest step with a checkpoint below a path, by the names of their folders."""
    names = (found.name.removeprefix("step-") for found in path.rglob("checkpoint/step-*"))
    return max((int(name) for name in names if name.isdigit()), default=-1)
