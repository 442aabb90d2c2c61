"""Random controllers: laws, settings and streams of measurements that no state may not survive.

`python tests/fuzz/controllers.py --count 20000` prints how many had a state that is not finite, a
weight out of bounds, an error, or another weight after being saved and restored.
"""

import argparse
import inspect
import json
import math
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

import controlvae as cv
from controlvae.laws.base import Schedule

Value = float | torch.Tensor


def draw_number(draw: random.Random, *, positive: bool = False) -> float:
    """Return a number of any size: usual, tiny, huge, zero or a whole number."""
    sizes = (
        draw.uniform(0, 60),
        draw.choice([0.0, 1.0, 18.0, 1e-3, 0.5]),
        10.0 ** draw.uniform(-12, 12),
        10.0 ** draw.uniform(-320, 308) if draw.random() < 0.5 else 10.0 ** draw.uniform(-30, 30),
    )
    value = draw.choice(sizes)
    return abs(value) if positive or draw.random() < 0.8 else -value


def draw_schedule(draw: random.Random) -> Schedule:
    """Return a schedule, valid or not to draw (ValueError)."""
    first, last = draw_number(draw), draw_number(draw)
    steps = draw.choice([1, 2, 3, 7, 50, 10_000])
    makers = (
        lambda: cv.Constant(first),
        lambda: cv.Linear(first, last, steps),
        lambda: cv.Staircase(first, last, draw_number(draw, positive=True), steps),
        lambda: cv.Sigmoid(steps, first, last),
        lambda: cv.Cyclical(steps, draw.uniform(0.01, 1), first, last),
        lambda: cv.Points((1, 1 + steps), (first, last)),
    )
    return draw.choice(makers)()


def draw_law(draw: random.Random) -> Any:
    """Return a law with random settings, or raise ValueError where they are refused."""
    target = draw_number(draw) if draw.random() < 0.7 else draw_schedule(draw)
    kinds = (
        cv.PI,
        cv.PID,
        cv.LagrangeMultiplier,
        cv.NuPI,
        cv.IncrementalPI,
        cv.AdaptiveKL,
        cv.LogLagrange,
        cv.Auto,
        cv.Geco,
        cv.Capacity,
    )
    kind = draw.choice(kinds)
    choices = {
        "kp": lambda: draw_number(draw, positive=True),
        "ki": lambda: draw_number(draw, positive=True),
        "kd": lambda: draw_number(draw, positive=True),
        "alpha": lambda: draw_number(draw, positive=True),
        "gamma": lambda: draw_number(draw, positive=True),
        "nu": lambda: draw.uniform(0, 0.999),
        "ema": lambda: draw.choice([0.0, 0.5, 0.99]),
        "beta_min": lambda: draw_number(draw),
        "beta_max": lambda: draw.choice([math.inf, draw_number(draw, positive=True)]),
        "beta_init": lambda: draw_number(draw, positive=True),
        "anti_windup": lambda: draw.choice(["conditional", "algorithm1", "freeze", "none"]),
        "direction": lambda: draw.choice(["direct", "inverse"]),
        "constraint": lambda: draw.choice(["equal", "at_most", "at_least"]),
        "reach_in": lambda: draw.choice([None, 200, 5_000]),
        "horizon": lambda: 10.0 ** draw.uniform(0, 9),
        "n_steps": lambda: 10.0 ** draw.uniform(0, 4),
        "projected": lambda: draw.random() < 0.5,
    }
    names = [name for name in inspect.signature(kind).parameters if name in choices]
    settings = {name: choices[name]() for name in names if draw.random() < 0.4}
    return kind(target, **settings)


def draw_trace(draw: random.Random, length: int) -> list[float]:
    """Return measurements: quiet, drifting or of any size, with unusable ones among them."""
    level, style = draw_number(draw, positive=True), draw.randrange(4)
    trace = []
    for number in range(length):
        value = (
            level,
            level * math.exp(min(number * draw.uniform(-0.2, 0.2), 600)),
            draw.uniform(0, 60),
            draw_number(draw),
        )[style]
        if draw.random() < 0.08:
            value = draw.choice([math.nan, math.inf, -math.inf, 0.0, -level, 1e29, 1e300, 5e-324])
        trace.append(value)
    return trace


def is_finite(state: dict[str, Any]) -> bool:
    """Return True if every value of a `state_dict` is finite."""
    return all(
        bool(torch.isfinite(torch.as_tensor(value, dtype=torch.float64)).all())
        for value in state.values()
    )


class Trial:
    """One random controller and what went wrong with it.

    Args:
        seed: Number of the controller.
    """

    def __init__(self, seed: int) -> None:
        self.draw, self.problems, self.steps = random.Random(seed), [], 0
        self.law: Any = None

    def run(self) -> None:
        """Step the controller through its measurements, and save and restore it half-way."""
        draw = self.draw
        while self.law is None:
            try:
                is_schedule = draw.random() < 0.1
                self.law = draw_schedule(draw) if is_schedule else draw_law(draw)
                options = self._draw_options()
                control = cv.Controller(self.law, **options)
            except ValueError:  # refused settings
                self.law = None
        kind, models = draw.choice(["float", "host", "float32"]), options.get("models")
        trace = draw_trace(draw, draw.choice([3, 12, 60]))
        copied = None
        try:
            for number, value in enumerate(trace):
                if number == len(trace) // 2:
                    copied = self._copy(control, options)
                last = draw.random() < 0.1
                weight = control.step(_as_kind(value, kind, models), last=last)
                self.steps += 1
                if copied is not None:
                    again = copied.step(_as_kind(value, kind, models), last=last)
                    if not torch.equal(torch.as_tensor(weight), torch.as_tensor(again)):
                        self.problems.append("another weight after resuming")
                self._check(control, thoroughly=number % 10 == 9 or number < 2)
                if draw.random() < 0.03 and not self.law.open_loop:
                    self._move_target(control, copied)
        except cv.ControlError:
            pass  # a weight that ran away is meant to stop
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def _draw_options(self) -> dict[str, Any]:
        draw = self.draw
        options: dict[str, Any] = {"sync_ranks": False}
        if draw.random() < 0.3:
            options["accumulate"] = draw.choice([2, 3])
        if draw.random() < 0.3:
            options["models"] = draw.choice([1, 3])
        if draw.random() < 0.3:
            options["delayed"] = True
        options["monitor"] = draw.random() < 0.6
        options["nonnegative"] = draw.random() < 0.2
        return options

    def _check(self, control: Any, *, thoroughly: bool) -> None:
        if thoroughly and not is_finite(control.state_dict()):
            self.problems.append("a state that is not finite")
        state, (low, high) = control.state, self.law.bounds
        values = (
            torch.stack(state)
            if isinstance(state[0], torch.Tensor)
            else torch.tensor(state, dtype=torch.float64)
        )
        if not bool(torch.isfinite(values.sum())):
            self.problems.append("a state that is not finite")
        weights = torch.as_tensor(state.beta, dtype=torch.float64)
        slack = 1e-12 * max(abs(low), 1.0)
        if float(weights.min()) < low - slack or float(weights.max()) > high * (1 + 1e-12) + slack:
            self.problems.append("a weight out of bounds")

    def _copy(self, control: Any, options: dict[str, Any]) -> Any:
        """Return a controller with the state of another, through JSON where there are no models."""
        state = control.state_dict()
        if options.get("models") is None and all(
            isinstance(v, float | int) for v in state.values()
        ):
            state = json.loads(json.dumps(state, allow_nan=False))
        copied = cv.Controller(self.law, **options)
        copied.load_state_dict(state)
        return copied

    def _move_target(self, *controls: Any) -> None:
        target = draw_number(self.draw)
        for control in controls:
            if control is not None:
                try:
                    control.set_target(target)
                except ValueError:  # not a target of this law
                    return


def _as_kind(value: float, kind: str, models: int | None) -> Value:
    if models is None and kind == "float":
        return value
    dtype = torch.float32 if kind == "float32" else torch.float64
    wide = torch.full(() if models is None else (models,), value, dtype=torch.float64)
    return wide.to(dtype)


def run_trials(count: int, first: int = 0) -> Iterator[Trial]:
    """Yield random controllers after their run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(first, first + count):
            trial = Trial(seed)
            trial.run()
            yield trial


def main() -> int:
    """Run the trials that the command line asks for. Return 1 if any had a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first controller")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, steps, found, laws = time.monotonic(), 0, Counter(), Counter()
    for number, trial in enumerate(run_trials(args.count, args.first)):
        steps += trial.steps
        laws[type(trial.law).__name__] += 1
        for problem in dict.fromkeys(trial.problems):
            found[problem.partition(":")[0]] += 1
            if sum(found.values()) <= 20:
                print(f"seed {args.first + number}: {trial.law}: {problem}", flush=True)
        if number % 1_000 == 999:
            print(f"{number + 1:,} controllers, {dict(found) or 'no problems'}", flush=True)
    seconds = time.monotonic() - began
    print(f"{args.count:,} controllers, {steps:,} steps, {seconds:.0f} s; {dict(laws)}")
    print(f"problems: {dict(found) or 'none'}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
