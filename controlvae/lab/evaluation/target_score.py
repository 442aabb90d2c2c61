"""Objectives by which the best set point is chosen, measured on validation examples."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from controlvae.errors import UserError
from controlvae.lab.custom.task import recall_task
from controlvae.lab.data.validation_split import split_train_validation
from controlvae.lab.evaluation.iwae import importance_weighted_bound
from controlvae.lab.evaluation.rate_measurement import measure_elbo_of, measure_fid
from controlvae.lab.runs.loaded import LoadedRun, on_published_validation

Objective = Literal["elbo", "iwae", "fid"] | Callable[[LoadedRun], float]

OBJECTIVES = ("elbo", "iwae", "fid")
_FID_IMAGES = 10_000, 1_000  # on a GPU and on a CPU
_IWAE_SAMPLES = 16


def check_objective(objective: Any) -> None:
    """Raise UserError if this is no objective."""
    if not callable(objective) and objective not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise UserError(f"objective must be {known} or a function of a run, got {objective!r}")


def name_objective(objective: Objective) -> str:
    """Return the name of an objective for messages."""
    if callable(objective):
        return getattr(objective, "__name__", "objective")
    return {"elbo": "ELBO", "iwae": f"IWAE-{_IWAE_SAMPLES}", "fid": "FID"}[objective]


def on_validation_examples(run: LoadedRun) -> LoadedRun:
    """Return a run over examples for choosing: a validation split if there is one.

    The test set is never used. Without a validation split these are training examples.
    """
    if (published := _published(run)) is not None:
        return published
    share = run.experiment.training.validation
    if run.among is None or not share:
        return run
    return replace(run, among=split_train_validation(len(run.examples), share)[1])


def _published(run: LoadedRun) -> LoadedRun | None:
    return None if recall_task(run.folder.path) is not None else on_published_validation(run)


def score_run(run: LoadedRun, objective: Objective, examples: int) -> float:
    """Return the objective of a run at its present rate. Higher is better.

    Args:
        run: Run over validation examples.
        objective: What to measure.
        examples: Number of examples.
    """
    if callable(objective):
        return float(objective(run))
    if objective == "iwae":
        found = importance_weighted_bound(run, _IWAE_SAMPLES, lambda share: None, examples)
        return float(found["bound"])
    if objective == "elbo":
        return measure_elbo_of(run, examples).elbo
    return -measure_fid(run, run.example_budget(*_FID_IMAGES))


def best_rate(rates: tuple[float, ...], scores: list[float]) -> float:
    """Return the rate of the highest score: the vertex of a parabola in log rate.

    The parabola is fitted to the best rate and two neighbours on each side, so that noise of single
    measurements averages out. It is not trusted beyond these rates.
    """
    finite = [score if math.isfinite(score) else -math.inf for score in scores]
    place = int(np.argmax(finite))
    around = slice(max(0, place - 2), place + 3)
    x, y = np.log(rates[around]), np.array(scores[around])
    if len(x) < 3 or not np.isfinite(y).all() or place in (0, len(rates) - 1):
        return rates[place]
    curvature, slope, _ = np.polyfit(x - x.mean(), y, 2)
    if curvature >= 0:
        return rates[place]
    vertex = x.mean() - slope / (2 * curvature)
    low, high = (math.log(rates[max(0, place - 1)]), math.log(rates[place + 1]))
    return float(np.exp(np.clip(vertex, low, high)))
