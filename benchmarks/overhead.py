"""What a controller adds to a step, in microseconds: `python examples/judge_cost.py`.

For each law: fed with Python numbers, with a tensor on the host and, where there is a GPU, with a tensor there, one
operation at a time as before anything is recorded, replayed as it is from the ninth step on, and by `item()`, which
waits for whatever the device still has to do (here nothing). Best of five rounds, the device waited for at the end.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch

import controlvae as cv
from controlvae import _cuda_graph as replay
from controlvae.laws import Law

LAWS = (cv.PI(18.0), cv.Auto(18.0))


def cost(step: Callable[[], object], steps: int, rounds: int = 5) -> float:
    """Microseconds a step, after some that are not counted."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    for _ in range(50):
        step()
    found = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        found.append(time.perf_counter() - start)
    return 1e6 * min(found) / steps


def judge(law: Law, steps: int = 2_000) -> Iterator[tuple[str, float]]:
    """Every way to feed it, and what a step costs."""
    yield "a number", cost(partial(cv.Controller(law).step, 17.0), steps)
    yield "a tensor on the host", cost(partial(cv.Controller(law).step, torch.tensor(17.0)), steps)
    if torch.cuda.is_available():
        kl = torch.tensor(17.0, device="cuda")
        with patch.object(replay, "_PLAIN", 1 << 60):
            yield (
                "a tensor on the GPU, one operation at a time",
                cost(partial(cv.Controller(law).step, kl), steps),
            )
        yield "a tensor on the GPU, replayed", cost(partial(cv.Controller(law).step, kl), steps)
        asked = cv.Controller(law)
        yield "its item()", cost(lambda: asked.step(kl.item()), steps)


if __name__ == "__main__":
    for law in LAWS:
        for way, microseconds in judge(law):
            print(f"{type(law).__name__:6s} {way:48s} {microseconds:8.1f}")
