"""Progress in notebooks: a curve that is updated in place while a model trains."""

import html
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from controlvae.lab.config import Experiment
from controlvae.lab.runs.curve_svg import Curve, draw_curves
from controlvae.lab.training.display import (
    ConsoleDisplay,
    ShowProgress,
    describe_progress,
)
from controlvae.lab.training.loop import Progress

_SECONDS_BETWEEN_DRAWINGS = 1.0

Output = dict[str, str]  # MIME types and contents
Update = Callable[[Output], None]


def show_output(output: Output) -> Update:
    """Show an output in the cell that is executed, and return a function that replaces it."""
    from IPython.display import display

    handle = display(output, raw=True, display_id=True)
    return lambda changed: handle.update(changed, raw=True)


class NotebookDisplay(ConsoleDisplay):
    """Display in a notebook: one output with the curve, and messages as plain lines.

    Args:
        show: Shows an output and returns a function that replaces it.
        seconds: Least time between two drawings.
    """

    def __init__(
        self,
        show: Callable[[Output], Update] = show_output,
        seconds: float = _SECONDS_BETWEEN_DRAWINGS,
    ) -> None:
        self._show, self._seconds = show, seconds

    def note(self, line: str) -> None:
        """Print a message. Notebooks show stderr in red, so it goes to stdout."""
        print(f"controlvae: {line}", flush=True)

    @contextmanager
    def training(self, experiments: Sequence[Experiment], start: int) -> Iterator[ShowProgress]:
        """Yield a function that draws the controlled quantity and β. The last drawing stays."""
        curves = [Curve.of(experiment) for experiment in experiments]
        update: Update | None = None
        latest: Progress | None = None
        last = -math.inf

        def draw() -> None:
            nonlocal update, last
            if latest is None:
                return
            output = make_output(latest, experiments, curves, start)
            if update is None:
                update = self._show(output)
            else:
                update(output)
            last = time.monotonic()

        def show(progress: Progress) -> None:
            nonlocal latest
            latest = progress
            for line in progress.messages:
                self.note(line)
            for curve, record in zip(curves, progress.records, strict=True):
                if record is not None:
                    curve.add(record)
            if time.monotonic() - last >= self._seconds:
                draw()

        try:
            yield show
        finally:
            draw()


def make_output(
    progress: Progress, experiments: Sequence[Experiment], curves: Sequence[Curve], start: int
) -> Output:
    """Return a progress update as HTML and as text.

    Args:
        progress: Newest update.
        experiments: Settings of the models.
        curves: Measurements of each model so far.
        start: Step at which this training started.
    """
    text = f"{experiments[0].name}  {describe_progress(progress, experiments)}"
    svg = draw_curves(curves, start, experiments[0].training.steps)
    line = f'<div style="font-family:monospace;white-space:pre-wrap">{html.escape(text)}</div>'
    return {"text/html": f"<div>{line}{svg}</div>", "text/plain": text}


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if hasattr(ipython, "get_ipython") else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
