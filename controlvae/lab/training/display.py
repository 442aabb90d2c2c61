"""Progress bars and messages of long operations: on the terminal, as callbacks, or silent."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from controlvae.lab.config import Experiment
from controlvae.lab.engines.measurements import format_nats, row_to_dict
from controlvae.lab.training.loop import Progress

_SECONDS_BETWEEN_LINES = 10.0

ShowProgress = Callable[[Progress], None]
ShowFraction = Callable[[float], None]


class Display:
    """Silent display, and the interface of the others."""

    def note(self, line: str) -> None:
        """Show a message that is not a result."""

    def status(self, line: str) -> None:
        """Show a result."""

    @contextmanager
    def training(self, experiments: Sequence[Experiment], start: int) -> Iterator[ShowProgress]:
        """Yield a function that shows the progress of training from step `start`."""
        yield lambda progress: None

    @contextmanager
    def bar(self, title: str) -> Iterator[ShowFraction]:
        """Yield a function that shows the completed fraction of a task."""
        yield lambda fraction: None


class CallbackDisplay(Display):
    """Display that passes every progress update to a function of the user."""

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    @contextmanager
    def training(self, experiments: Sequence[Experiment], start: int) -> Iterator[ShowProgress]:
        """Yield the callback, which receives `Progress` objects."""
        yield self._callback

    @contextmanager
    def bar(self, title: str) -> Iterator[ShowFraction]:
        """Yield the callback, which receives the completed fraction."""
        yield self._callback


class ConsoleDisplay(Display):
    """Display on the terminal: results on stdout, messages and progress on stderr.

    A terminal shows live bars if rich is installed. Files and pipes get a line every few seconds.
    """

    def note(self, line: str) -> None:
        """Print a message on stderr."""
        print(f"controlvae: {line}", file=sys.stderr, flush=True)

    def status(self, line: str) -> None:
        """Print a result on stdout."""
        print(line, flush=True)

    @contextmanager
    def training(self, experiments: Sequence[Experiment], start: int) -> Iterator[ShowProgress]:
        """Yield a function that shows step, KL, β, reconstruction, speed and remaining time."""
        rich = _rich_progress()
        if rich is None:
            yield self._training_lines(experiments)
            return
        bar = rich.Progress(
            rich.TextColumn("[bold]{task.description}"),
            rich.BarColumn(bar_width=24),
            rich.TextColumn("{task.fields[state]}"),
            console=_console(),
        )
        with bar:
            title, steps = _escape(experiments[0].name), experiments[0].training.steps
            task = bar.add_task(title, total=steps, completed=start, state="starting")

            def show(progress: Progress) -> None:
                for line in progress.messages:
                    bar.console.print(f"controlvae: {line}", markup=False, highlight=False)
                state = describe_progress(progress, experiments)
                bar.update(task, completed=progress.step, state=state)

            yield show

    def _training_lines(self, experiments: Sequence[Experiment]) -> ShowProgress:
        last = -math.inf

        def show(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            for line in progress.messages:
                self.note(line)
            finished = progress.step == experiments[0].training.steps
            if now - last >= _SECONDS_BETWEEN_LINES or finished:
                last = now
                print(describe_progress(progress, experiments), file=sys.stderr, flush=True)

        return show

    @contextmanager
    def bar(self, title: str) -> Iterator[ShowFraction]:
        """Yield a function that moves a bar. Files and pipes get the title, at the first call."""
        rich = _rich_progress()
        if rich is None:
            announce = cache(lambda: self.note(title))
            yield lambda fraction: announce()
            return
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.TimeRemainingColumn(),
        )
        with rich.Progress(*columns, console=_console(), transient=True) as bar:
            task = bar.add_task(_escape(title), total=1.0)
            yield lambda fraction: bar.update(task, completed=fraction)


def make_display(progress: bool | Callable[[Any], None] | Display) -> Display:
    """Return the display for a `progress` argument: True, False, a callback, or a display."""
    if isinstance(progress, Display):
        return progress
    if callable(progress):
        return CallbackDisplay(progress)
    if not progress:
        return Display()
    from controlvae.lab.training.notebook import NotebookDisplay, in_notebook

    return NotebookDisplay() if in_notebook() else ConsoleDisplay()


def describe_progress(progress: Progress, experiments: Sequence[Experiment]) -> str:
    """Return one line about a progress update.

    Of several models, the line is about the first one with a target. It says which model that is
    and how many are trained.
    """
    controlled = [n for n, one in enumerate(experiments) if not one.control.open_loop]
    shown = controlled[0] if controlled else 0
    experiment = experiments[shown]
    row, steps = row_to_dict(progress.latest[shown], experiment), experiment.training.steps
    weighted = experiment.objective.controlled_quantity
    target = (
        {}
        if experiment.control.open_loop
        else {experiment.controlled_quantity: f"/{format_nats(row['target'])}"}
    )
    speed = progress.steps_per_second
    remaining = (steps - progress.step) / speed if speed > 0 else math.inf
    bound = "  β at its bound" if row["saturated"] else ""
    models = f"  x{len(experiments)} models" if len(experiments) > 1 else ""
    if len({one.name for one in experiments}) > 1:
        models += f", numbers of {experiment.name}"
    critic = f" (critic {row['critic_accuracy']:.0%} right)" if "critic_accuracy" in row else ""
    # Without a critic the total correlation is estimated in the batch.
    name = "batch TC" if weighted == "tc" and not critic else weighted.upper()
    return (
        f"step {progress.step:,}/{steps:,}  "
        f"{name} {format_nats(row[weighted])}{target.get(weighted, '')}{critic}  "
        f"β {row['beta']:.3f}  "
        f"rec {row['reconstruction']:.1f}{target.get('reconstruction', '')}  "
        f"{speed:,.0f} steps/s  {_clock(remaining)} left{models}{bound}"
    )


def _rich_progress() -> Any:
    """Return `rich.progress` if rich is installed and stderr is a terminal, else None."""
    if not sys.stderr.isatty():
        return None
    try:
        import rich.progress
    except ImportError:
        return None
    return rich.progress


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
