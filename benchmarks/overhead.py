"""Time what a controller adds to a training step, in microseconds.

    python benchmarks/overhead.py

Each law is measured with Python numbers and with a tensor on the host. On a machine with a GPU, it
is also measured with a tensor there: one operation at a time (the first eight steps), replayed as a
CUDA graph (from the ninth step on), and with `item()`, which waits for all work on the device (here
none). A time is the best of five rounds, each of which ends by waiting for the device.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch

import controlvae as cv
from controlvae import _cuda_graph as cuda_graph
from controlvae.laws import Law

LAWS = (cv.PI(18.0), cv.Auto(18.0))
WARM_UP_STEPS = 250  # updates on floats are compiled at step 200


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


def time_law(law: Law, steps: int = 2_000) -> Iterator[tuple[str, float]]:
    """Yield each kind of measurement and the microseconds per step."""
    yield "a number", time_step(partial(cv.Controller(law).step, 17.0), steps)
    host = torch.tensor(17.0)
    yield "a tensor on the host", time_step(partial(cv.Controller(law).step, host), steps)
    if torch.cuda.is_available():
        kl = torch.tensor(17.0, device="cuda")
        with patch.object(cuda_graph, "_EAGER_UPDATES", 1 << 60):
            eager = time_step(partial(cv.Controller(law).step, kl), steps)
            yield "a tensor on the GPU, one operation at a time", eager
        replayed = time_step(partial(cv.Controller(law).step, kl), steps)
        yield "a tensor on the GPU, replayed", replayed
        control = cv.Controller(law)
        yield "item() of a tensor on the GPU", time_step(lambda: control.step(kl.item()), steps)


if __name__ == "__main__":
    for law in LAWS:
        for measurement, microseconds in time_law(law):
            print(f"{type(law).__name__:6s} {measurement:48s} {microseconds:8.1f}")
