"""Number of CPU threads: the user's own, the default of a model, or the fastest one measured."""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from controlvae.lab.config import DialogVAEConfig, Experiment, TextVAEConfig
from controlvae.lab.engines.base import Engine
from controlvae.lab.engines.spinning import cores_released

# A text model up to this width is trained on one thread.
_MAX_SINGLE_THREAD_WIDTH = 128

_MIN_STEPS = 500  # shorter runs are not measured
# Time of measuring: in total, and as a share of the whole run and of the time limit.
_MAX_SECONDS, _MAX_SHARE, _MAX_LIMIT_SHARE = 1.5, 0.015, 0.1
_ROUNDS = 3  # each tries every number of threads, because the load of other processes changes
_MIN_RELATIVE_RATE = 0.6  # numbers of threads slower than this are dropped after a round
_TIE = 0.97  # of two numbers of threads this close, the smaller is chosen


def available_cores() -> int:
    """Return the number of logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def user_threads() -> int | None:
    """Return the number of threads that the user has set, or None.

    `OMP_NUM_THREADS` and `MKL_NUM_THREADS` count, and so does a call of `torch.set_num_threads`
    with a number that torch would not have chosen.
    """
    current = torch.get_num_threads()
    if os.environ.keys() & {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}:
        return current
    return None if current in (available_cores(), _physical_cores()) else current


def model_threads(experiment: Experiment) -> int | None:
    """Return the number of threads that suits a model on any machine, or None to measure.

    Steps of a small text model are many tiny sequential operations. With several threads each
    operation waits for all of them: next to another busy process such steps took a hundred times
    longer on two cores, and on an idle machine they gained nothing.
    """
    match experiment.model:
        case TextVAEConfig(width=width) | DialogVAEConfig(context=width):
            return 1 if width <= _MAX_SINGLE_THREAD_WIDTH else None
    return None


@contextmanager
def use_threads(threads: int | None) -> Iterator[None]:
    """Run torch on this number of threads within this context. None changes nothing."""
    before = torch.get_num_threads()
    if threads is not None and threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def measure_threads(
    engine: Engine, models: int, steps: int, time_limit: float, candidates: Sequence[int] = ()
) -> dict[int, float]:
    """Measure training steps per second with different numbers of threads.

    The engine takes real steps and is then restored, and so are the global random generators:
    training continues as if nothing had been measured. Takes at most 1.5 seconds, or a few steps
    where one takes long, at most about 1.5 % of the run and 10 % of the time limit.

    Args:
        engine: Engine on a CPU, at the step from which training continues.
        models: Number of models of the engine.
        steps: Number of steps that are left.
        time_limit: Seconds that training may take.
        candidates: Numbers of threads. The default is one, half of torch's number, and all.

    Returns:
        Steps per second by number of threads. Empty if the run is too short to measure.
    """
    most = torch.get_num_threads()
    candidates = sorted(set(candidates or (1, max(1, most // 2), most)))
    if len(candidates) < 2 or steps < _MIN_STEPS:
        return {}
    start = engine.step
    state = [engine.snapshot(model) for model in range(models)]

    def rewind() -> None:
        for model, tensors in enumerate(state):
            engine.restore(model, start, tensors)

    with _random_generators_kept():
        try:
            return _compare(engine, candidates, steps, time_limit, rewind)
        finally:
            rewind()


def fastest(rates: dict[int, float]) -> int:
    """Return the smallest number of threads that is about as fast as the best one."""
    best = max(rates.values())
    return min(threads for threads, rate in rates.items() if rate >= _TIE * best)


def _compare(
    engine: Engine,
    candidates: Sequence[int],
    steps: int,
    time_limit: float,
    rewind: Callable[[], None],
) -> dict[int, float]:
    """Return steps per second by number of threads, or nothing if it would take too long."""
    most = candidates[-1]
    # Without spinning a step next to busy processes takes a few times longer, not a hundred.
    with cores_released(most):
        _time_steps(engine, most)  # libraries set themselves up
        (step_time,) = _time_steps(engine, most)
    budget = min(
        max(_MAX_SECONDS, 6 * step_time),
        _MAX_SHARE * step_time * steps,
        _MAX_LIMIT_SHARE * time_limit,
    )
    # With few threads, steps of a large model take too long to try.
    candidates = [n for n in candidates if 2 * step_time * most / n < budget]
    if len(candidates) < 2:
        return {}
    for threads in candidates[:-1]:
        _time_steps(engine, threads)
    block, deadline = budget / (_ROUNDS * len(candidates)), time.perf_counter() + budget
    times: dict[int, list[float]] = {threads: [] for threads in candidates}
    remaining = candidates
    for _ in range(_ROUNDS):
        for threads in remaining:
            rewind()  # every candidate takes the same steps
            first, *rest = _time_steps(engine, threads, block)
            times[threads] += rest or [first]  # the first one includes the switch
        # A few steps that other work delays move a mean of so few, but not their median.
        rates = {threads: 1 / statistics.median(each) for threads, each in times.items()}
        limit = _MIN_RELATIVE_RATE * max(rates.values())
        remaining = [threads for threads in remaining if rates[threads] >= limit]
        if len(remaining) < 2 or time.perf_counter() > deadline:
            break
    return rates


def _time_steps(engine: Engine, threads: int, seconds: float = 0.0) -> list[float]:
    """Take steps for at least this time. Return the seconds that each of them took."""
    times: list[float] = []
    with use_threads(threads):
        while not times or sum(times) < seconds:
            began = time.perf_counter()
            engine.advance(1)
            times.append(time.perf_counter() - began)
    return times


@contextmanager
def _random_generators_kept() -> Iterator[None]:
    """Restore the global random generators of torch, NumPy and Python at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _physical_cores() -> int:
    """Return the number of available physical cores, which is torch's default number of threads.

    Returns the number of logical cores where the system does not tell.
    """
    if not hasattr(os, "sched_getaffinity"):
        return available_cores()
    folder = Path("/sys/devices/system/cpu")
    try:
        siblings = {
            (folder / f"cpu{core}/topology/thread_siblings_list").read_text()
            for core in os.sched_getaffinity(0)
        }
    except OSError:
        return available_cores()
    return len(siblings)
