"""Train a model of a host under our controller and under other rules for the same weight."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common import OURS, make_entry, score_run
from torch import Tensor

import controlvae as cv

Rule = Callable[[Tensor], Any]  # measurement of a batch -> weight of this batch
Step = Callable[[Rule], tuple[float, float]]  # trains on a batch, returns measurement and weight


@dataclass(frozen=True)
class Task:
    """Model of a host, with the quantity to control.

    Attributes:
        host: Name of the host.
        packages: Packages whose versions are recorded, separated by spaces.
        quantity: Controlled quantity.
        unit: Unit of the quantity.
        targets: Set points.
        steps: Optimiser steps of a run.
        make_step: Builds model, data and optimiser for a seed and returns the training step.
        note: Model and data in a few words, and what the other methods are.
        law: Settings of `Auto` other than the target.
    """

    host: str
    packages: str
    quantity: str
    unit: str
    targets: Sequence[float]
    steps: int
    make_step: Callable[[int], Step]
    note: str
    law: Mapping[str, Any] = field(default_factory=dict)


def compare(
    task: Task,
    seeds: Sequence[int],
    weights: Mapping[str, float],
    rules: Mapping[str, Callable[[float], Rule]] | None = None,
) -> list[dict[str, Any]]:
    """Train under every method and return one entry for each target.

    Runs with a fixed weight do not depend on the target and are trained once. The first weight is
    the host's default. If there are several, a further method takes for every target and seed the
    run that ended nearest to the target: the result of a search by hand.

    Args:
        task: Model and targets.
        seeds: Seeds.
        weights: Names and values of fixed weights.
        rules: Names of the host's other methods, and functions from the target to the rule.
    """
    fixed = {
        (name, seed): _train(task, seed, lambda _, weight=weight: weight)
        for name, weight in weights.items()
        for seed in seeds
    }
    entries = []
    for target in task.targets:
        runs = []
        for seed in seeds:
            control = cv.Controller(cv.Auto(target, **task.law))
            runs.append(score_run(OURS, seed, target, *_train(task, seed, control.step)))
            scored = {n: score_run(n, seed, target, *fixed[n, seed]) for n in weights}
            runs.append(scored[next(iter(weights))])
            if len(weights) > 1:
                nearest = min(scored.values(), key=lambda run: abs(run["error"] or 1e9))
                runs.append({**nearest, "method": f"best of {len(weights)} weights"})
            for name, make_rule in (rules or {}).items():
                trace = _train(task, seed, make_rule(target))
                runs.append(score_run(name, seed, target, *trace))
        entries.append(
            make_entry(task.host, task.packages, task.quantity, task.unit, target, runs, task.note)
        )
    return entries


def _train(task: Task, seed: int, rule: Rule) -> tuple[list[float], list[float]]:
    """Return the measurement and the weight of every step."""
    step = task.make_step(seed)
    measured, weights = zip(*(step(rule) for _ in range(task.steps)), strict=True)
    return list(measured), list(weights)
