"""Train plants at fixed weights, to choose the targets and windows of new problems.

    python benchmarks/laws/calibrate.py digits vib

Prints, for a range of weights, the level of the measurement at two times and its relative noise.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
import controlvae as cv
from laws.problem import Problem
from laws.problems import PROBLEMS
from laws.train import train_stack

SEEDS = (101, 102)


def calibrate(problem: Problem, steps: int, low: float, high: float, count: int) -> None:
    """Train at weights between two powers of ten and print a table.

    Args:
        problem: Problem whose plant is trained.
        steps: Training steps.
        low: Exponent of the smallest weight.
        high: Exponent of the largest weight.
        count: Number of weights.
    """
    weights = np.logspace(low, high, count)
    laws = [cv.Constant(weight) for weight in weights]
    problem = replace(problem, moves=(), window=10)
    train_stack(problem, laws, SEEDS, 10)  # the first optimiser loads modules
    started = time.process_time()
    traces = train_stack(problem, laws, SEEDS, steps)
    seconds = time.process_time() - started
    print(f"{problem.name}: {1e3 * seconds / steps:.1f} ms per step of {2 * count} runs")
    print("    weight   early    half     end    noise (per batch)")
    for number, weight in enumerate(weights):
        runs = traces.measured[2 * number : 2 * number + 2]
        early, half, end = (
            runs[:, int(at * steps) : int((at + 0.1) * steps)].mean() for at in (0.1, 0.5, 0.9)
        )
        tail = runs[:, -steps // 4 :]
        # Differences of neighbours are free of drift.
        noise = np.sqrt(np.mean(np.diff(tail) ** 2) / 2)
        print(f"{weight:10.3g} {early:8.4g} {half:8.4g} {end:8.4g} {noise / abs(end):8.1%}")


def main() -> None:
    """Calibrate the problems whose names contain an argument."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--range", type=float, nargs=2, default=(-3, 2))
    parser.add_argument("--count", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for problem in PROBLEMS:
        if any(name in problem.name for name in options.names):
            calibrate(problem, options.steps, *options.range, options.count)


if __name__ == "__main__":
    main()
