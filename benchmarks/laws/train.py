"""Training of all runs of a problem at once, under one controller."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import controlvae as cv
from controlvae.laws import Law
from laws.problem import Problem
from laws.stack import Stack


class Traces(NamedTuple):
    """Block means of the measurement and last weights of blocks, each (runs, blocks)."""

    measured: np.ndarray
    weight: np.ndarray


def train_stack(
    problem: Problem, laws: Sequence[Law], seeds: Sequence[int], steps: int | None = None
) -> Traces:
    """Train a problem under every law with every seed.

    Args:
        problem: Problem to train.
        laws: One law per setting, all of different settings.
        seeds: Seeds of every law.
        steps: Steps to train, for timing; default those of the problem.

    Returns:
        Traces of the runs, ordered by law and then by seed.
    """
    stack = Stack(seeds, len(laws))
    plant = problem.make_plant(stack)
    control = make_controller([law for law in laws for _ in seeds])
    optimiser = make_optimiser(problem, stack.parameters)
    moves = dict(problem.moves)
    steps = problem.steps if steps is None else steps // problem.stride * problem.stride
    measured = torch.empty(steps, stack.runs)
    weights = torch.empty(steps // problem.stride, stack.runs)
    for step in range(steps):
        if step in moves:
            control.set_target(moves[step])
        optimiser.param_groups[0]["lr"] = problem.lr_at(step)
        losses = plant.losses(step)
        value = problem.unit * losses.measured.detach()
        weight = control.step(value)
        optimiser.zero_grad()
        (losses.objective + weight * problem.unit * losses.term).sum().backward()
        optimiser.step()
        measured[step], weights[step // problem.stride] = value, weight
    blocks = measured.view(-1, problem.stride, stack.runs).mean(1)
    return Traces(blocks.T.contiguous().numpy(), weights.T.contiguous().numpy())


def make_controller(laws: Sequence[Law]) -> cv.Controller:
    """Create a controller of many models that keeps no statistics of them."""
    return cv.Controller(list(laws), monitor=False)


def make_optimiser(problem: Problem, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Create the optimiser of a problem. All its operations are independent per run."""
    kind = torch.optim.Adam if problem.optimiser == "adam" else torch.optim.SGD
    return kind(parameters, lr=problem.lr, fused=True)
