"""What a person sees while they wait: a live bar in a terminal, a line now and then in a file."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import rich.progress
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from controlvae.lab.config import Experiment
from controlvae.lab.engines.measurements import format_nats, row_to_dict
from controlvae.lab.training.loop import Progress

_LINE_SECONDS = 10.0


def wide_console(least: int = 120) -> Console:
    """For tables: as wide as the terminal; a file has no width of its own."""
    return Console() if sys.stdout.isatty() else Console(width=least)


@contextmanager
def simple_bar(title: str) -> Iterator[Callable[[float], None]]:
    """A bar for work with a known share done; silent where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with rich.progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(escape(title), total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def training_bar(
    experiments: Sequence[Experiment], start: int
) -> Iterator[Callable[[Progress], None]]:
    """Step, what is held against its target, β, reconstruction, speed and time left, live or as lines."""
    console, experiment = Console(stderr=True), experiments[0]
    if not console.is_terminal:
        yield _lines(experiments)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
    )
    with rich.progress.Progress(*columns, console=console) as bar:
        task = bar.add_task(
            escape(experiment.name),
            total=experiment.training.steps,
            completed=start,
            state="starting",
        )

        def show(progress: Progress) -> None:
            for line in progress.news:
                bar.console.print(f"controlvae: {line}", markup=False, highlight=False)
            bar.update(task, completed=progress.step, state=describe(progress, experiments))

        yield show


def _lines(experiments: Sequence[Experiment]) -> Callable[[Progress], None]:
    last = -math.inf

    def show(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        for line in progress.news:
            print(f"controlvae: {line}", file=sys.stderr, flush=True)
        if now - last >= _LINE_SECONDS or progress.step == experiments[0].training.steps:
            last = now
            print(describe(progress, experiments), file=sys.stderr, flush=True)

    return show


def describe(progress: Progress, experiments: Sequence[Experiment]) -> str:
    """One progress in one line; of several models, the first that holds something, which it is, and how many."""
    held = [number for number, own in enumerate(experiments) if not own.control.open_loop]
    shown = held[0] if held else 0
    experiment = experiments[shown]
    row, steps, weighed = (
        row_to_dict(progress.latest[shown], experiment),
        experiment.training.steps,
        experiment.objective.controlled_quantity,
    )
    target = (
        {experiment.controlled_quantity: f"/{format_nats(row['target'])}"}
        if not experiment.control.open_loop
        else {}
    )
    left = (
        (steps - progress.step) / progress.steps_per_second
        if progress.steps_per_second > 0
        else math.inf
    )
    bound = "  β at its bound" if row["saturated"] else ""
    beside = f"  x{len(experiments)} models" if len(experiments) > 1 else ""
    if len({own.name for own in experiments}) > 1:
        beside += f", these numbers of {experiment.name}"
    judged = f" (critic {row['critic_accuracy']:.0%} right)" if "critic_accuracy" in row else ""
    # Without a critic a total correlation is estimated in the batch, and off by about (latents - 1) log(examples).
    name = "biased TC" if weighed == "tc" and not judged else weighed.upper()
    return (
        f"step {progress.step:,}/{steps:,}  {name} {format_nats(row[weighed])}{target.get(weighed, '')}{judged}  "
        f"β {row['beta']:.3f}  rec {row['reconstruction']:.1f}{target.get('reconstruction', '')}  "
        f"{progress.steps_per_second:,.0f} steps/s  {clock(left)} left{beside}{bound}"
    )


def clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
