"""Stopping training: by a signal, or by a callback of the user that fails."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from controlvae.errors import RunError
from controlvae.lab.engines.base import Engine
from controlvae.lab.training.display import Display
from controlvae.lab.training.loop import Progress


class Callbacks:
    """Callbacks of the user. One that fails stops training after the step is saved.

    Args:
        functions: Functions that receive `Progress` updates.
        stop: Event that a signal sets. Ctrl-C inside a callback sets it too.
    """

    def __init__(self, functions: Sequence[Callable[[Any], None]], stop: threading.Event) -> None:
        self.functions, self.stop = functions, stop
        self.failure: RunError | None = None

    def call(self, progress: Progress) -> None:
        """Call every function, unless one has failed."""
        for function in self.functions if self.failure is None else ():
            try:
                function(progress)
            except KeyboardInterrupt:
                if self.stop.is_set():  # the second one leaves at once
                    raise
                self.stop.set()
            except Exception as error:
                name = getattr(function, "__qualname__", type(function).__name__)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self.failure = RunError(
                    f"callback {name} failed at step {progress.step:,} ({reason}); the run is "
                    "saved: repair the callback, then continue with lab.resume"
                )
                self.failure.__cause__ = error
                return

    def should_stop(self) -> bool:
        """Return whether training should save and stop."""
        return self.failure is not None or self.stop.is_set()


class StopRequest:
    """Request to save and stop that comes from outside, such as from a batch system.

    Attributes:
        event: Set it to stop a training. Training saves after the current step.
        is_training: True while training looks at the event. Anything else may be stopped at once.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_training = False

    @contextmanager
    def during_training(self) -> Iterator[threading.Event]:
        """Yield the event, and note that training looks at it."""
        self.is_training = True
        try:
            yield self.event
        finally:
            self.is_training = False


@contextmanager
def end_workers(engine: Engine) -> Iterator[None]:
    """End the worker processes that read data, whatever ends training.

    They would keep the lock of the run folder. If one of them dies, torch raises an exception from
    a signal handler, wherever the training process is at that moment.

    Args:
        engine: Engine whose data is read by workers.

    Raises:
        RunError: If a worker died.
    """
    close = getattr(engine, "close", lambda: None)
    try:
        try:
            yield
        finally:
            close()
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), "")
        if "DataLoader worker" not in reason:
            raise
        close()  # the first time, the signal may have come in between
        raise RunError(
            f"a process that reads data has ended ({reason.partition('. ')[0]}); memory may be "
            "short, or a library may have crashed: lab.resume with workers=0 reads in this process"
        ) from error


@contextmanager
def catch_stop_signals(display: Display, quiet: bool = False) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets. A second signal interrupts at once.

    Python delivers signals to the main thread alone. In other threads the event is never set.

    Args:
        display: Receives a message about the signal.
        quiet: Print nothing on SIGTERM, with which torchrun ends ranks after another one failed.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request_stop(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if quiet and number == signal.SIGTERM:
            return
        print(file=sys.stderr)  # the terminal has echoed ^C
        display.note("stopping after this step; press Ctrl-C again to leave at once")

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, request_stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
