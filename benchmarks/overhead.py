"""Time what a controller adds to a training step, in microseconds.

    python benchmarks/overhead.py

Each law is measured with Python numbers and with a tensor on the host. On a machine with a GPU, it
is also measured with a tensor there: with torch operations one at a time, with those replayed as a
CUDA graph (as without Triton), with the fused kernel, and with `item()`, which waits for all work on
the device (here none). The updates with torch operations and with the fused kernel are also measured
inside a graph of a user, which holds 50 updates. A time is the best of five rounds, each of which
ends by waiting for the device. Kernels are counted by torch's profiler.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import controlvae as cv
from controlvae import _cuda_graph as cuda_graph
from controlvae._fused import update as fused
from controlvae.laws import Law

LAWS = (cv.PI(18.0), cv.Auto(18.0))
WARM_UP_STEPS = 250  # updates on floats are compiled at step 200
GRAPH_UPDATES = 50


class Overhead(NamedTuple):
    """Cost of an update."""

    measurement: str
    microseconds: float
    kernels: float | None = None  # device operations per update, None on the host


def time_step(step: Callable[[], object], steps: int, rounds: int = 5) -> float:
    """Return microseconds per step, after a warm-up.

    Args:
        step: Function to time.
        steps: Steps per round.
        rounds: Rounds, of which the fastest counts.
    """
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(WARM_UP_STEPS):
        step()
    seconds = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        seconds.append(time.perf_counter() - start)
    return 1e6 * min(seconds) / steps


def count_kernels(step: Callable[[], object], steps: int = 1) -> float:
    """Return the device operations per step: kernels and copies."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = profiler.events() or []
    return sum(event.device_type == DeviceType.CUDA for event in events) / steps


def measure_gpu(measurement: str, law: Law, steps: int) -> Overhead:
    """Return the cost of a plain call of `step` with a tensor on the GPU.

    Args:
        measurement: Name of the result.
        law: Law to measure.
        steps: Steps per round.
    """
    step = partial(cv.Controller(law).step, torch.tensor(17.0, device="cuda"))
    microseconds = time_step(step, steps)
    return Overhead(measurement, microseconds, count_kernels(step, 10))


def measure_graph(measurement: str, law: Law, steps: int) -> Overhead:
    """Return the cost of an update inside a CUDA graph.

    Args:
        measurement: Name of the result.
        law: Law to measure.
        steps: Updates per round.
    """
    control, kl = cv.Controller(law), torch.tensor(17.0, device="cuda")
    for _ in range(3):
        control.step(kl)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_UPDATES):
            control.step(kl)
    microseconds = time_step(graph.replay, max(1, steps // GRAPH_UPDATES)) / GRAPH_UPDATES
    return Overhead(measurement, microseconds, count_kernels(graph.replay) / GRAPH_UPDATES)


def measure_law(law: Law, steps: int = 2_000) -> Iterator[Overhead]:
    """Yield the cost of an update for each kind of measurement."""
    yield Overhead("a number", time_step(partial(cv.Controller(law).step, 17.0), steps))
    host = torch.tensor(17.0)
    yield Overhead("a tensor on the host", time_step(partial(cv.Controller(law).step, host), steps))
    if not torch.cuda.is_available():
        return
    with patch.object(fused, "ENABLED", False):
        with patch.object(cuda_graph, "_EAGER_UPDATES", 1 << 60):
            yield measure_gpu("a tensor on the GPU, one operation at a time", law, steps // 20)
        yield measure_gpu("a tensor on the GPU, replayed", law, steps)
        yield measure_graph("inside a captured graph, torch operations", law, steps // 10)
    yield measure_gpu("a tensor on the GPU, fused", law, steps)
    yield measure_graph("inside a captured graph, fused", law, steps)
    kl, control = torch.tensor(17.0, device="cuda"), cv.Controller(law)
    waiting = time_step(lambda: control.step(kl.item()), steps)
    yield Overhead("item() of a tensor on the GPU", waiting)


if __name__ == "__main__":
    print(f"{'law':6s} {'measurement':48s} {'µs':>8s} {'kernels':>8s}")
    for law in LAWS:
        for cost in measure_law(law):
            kernels = "" if cost.kernels is None else f"{cost.kernels:8.1f}"
            name = type(law).__name__
            print(f"{name:6s} {cost.measurement:48s} {cost.microseconds:8.1f} {kernels}")
