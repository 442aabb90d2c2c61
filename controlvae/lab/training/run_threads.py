"""CPU threads of a training: chosen once, recorded in the run, and kept when it is resumed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from controlvae.errors import UserError
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.spinning import release_cores_under_load
from controlvae.lab.engines.threads import (
    available_cores,
    fastest,
    measure_threads,
    model_threads,
    use_threads,
    user_threads,
)
from controlvae.lab.reading import shorten
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.loop import Run

_EVENT = "threads"
_MAX_THREADS = 4_096


def parse_threads(value: str | int) -> int | None:
    """Return a number of threads, or None for `auto`.

    Raises:
        UserError: If the value is neither.
    """
    if value == "auto":
        return None
    try:
        threads = int(value)
    except (TypeError, ValueError, OverflowError):
        threads = 0
    if not 1 <= threads <= _MAX_THREADS or isinstance(value, bool):
        raise UserError(
            f"--threads takes auto or a number from 1 to {_MAX_THREADS:,}, got {shorten(value)}"
        )
    return threads


def recorded_threads(folder: RunFolder) -> int | None:
    """Return the number of threads that a run was last trained with on a CPU, or None."""
    events = [event for event in folder.events() if event["event"] == _EVENT]
    return events[-1].get("threads") if events else None


@contextmanager
def training_threads(
    runs: Sequence[Run],
    engine: Engine,
    *,
    requested: int | None,
    device: torch.device,
    time_limit: float,
    note: Callable[[str], None],
) -> Iterator[None]:
    """Choose and record the number of CPU threads of runs, and use it within this context.

    Sums are split among threads, so the last bits of a result depend on their number. Runs that
    train side by side share it, and a resumed run keeps the one it began with. While other
    processes compete for the cores, waiting threads do not spin.

    Args:
        runs: Opened and restored runs, one per model of the engine.
        engine: Engine at the step of the runs' checkpoints.
        requested: Number that the user asks for, or None to choose it.
        device: Device of the engine. Nothing is chosen on a GPU.
        time_limit: Seconds that training may take.
        note: Receives messages for the user.
    """
    if device.type != "cpu":
        yield
        return
    choice = _choose(runs, engine, requested, time_limit, note)
    for run in runs:
        if recorded_threads(run.folder) != choice.threads:
            details = {"step": engine.step, **choice._asdict()}
            run.logger.event(_EVENT, **{key: v for key, v in details.items() if v is not None})
        run.threads = choice.threads
    with use_threads(choice.threads), release_cores_under_load(choice.threads):
        yield


class _Choice(NamedTuple):
    """A number of threads and its origin, as an event records them."""

    threads: int
    source: str
    steps_per_second: dict[int, float] | None = None


def _choose(
    runs: Sequence[Run],
    engine: Engine,
    requested: int | None,
    time_limit: float,
    note: Callable[[str], None],
) -> _Choice:
    recorded = runs[0].threads or recorded_threads(runs[0].folder)
    if requested is not None:
        if recorded not in (None, requested):
            note(
                f"threads: {requested} instead of {recorded}; results may differ in the last "
                "digits from those of an uninterrupted run"
            )
        return _Choice(requested, "option")
    own, cores = user_threads(), available_cores()
    if recorded is not None:
        if own not in (None, recorded) or recorded > cores:
            note(
                f"threads: {recorded}, as before, with {cores} cores; --threads "
                f"{own or cores} changes that, and perhaps the last digits of the results"
            )
        return _Choice(recorded, "recorded")
    if own is not None:
        return _Choice(own, "user")
    suited = model_threads(runs[0].experiment)
    return _Choice(suited, "model") if suited else _measure(runs, engine, time_limit, note)


def _measure(
    runs: Sequence[Run], engine: Engine, time_limit: float, note: Callable[[str], None]
) -> _Choice:
    """Return the fastest number of threads, or torch's own for runs that cannot be measured."""
    rates: dict[int, float] = {}
    # Versions before 0.2 recorded nothing and used torch's own number. A stream of the user cannot
    # be read twice.
    if engine.step == 0 and getattr(engine, "can_rewind", True):
        steps = runs[0].experiment.training.steps
        rates = measure_threads(engine, len(runs), steps, time_limit)
    if not rates:
        return _Choice(torch.get_num_threads(), "default")
    threads = fastest(rates)
    measured = ", ".join(f"{rate:.3g} with {number}" for number, rate in rates.items())
    note(f"threads: {threads} (steps/s: {measured})")
    return _Choice(threads, "measured", {n: round(rate, 2) for n, rate in rates.items()})
