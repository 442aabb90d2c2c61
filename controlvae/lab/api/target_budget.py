"""Search for the best set point within a budget of steps, around the plain VAE's KL."""

from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.find_target import FoundTarget, find_best_target
from controlvae.lab.config import RateRange
from controlvae.lab.evaluation.target_score import Objective, check_objective
from controlvae.lab.training.resolve import Overrides
from controlvae.lab.training.runner import RunOptions
from controlvae.tuning.advice import Advice

_FACTOR = 4.0  # the search covers the plain VAE's KL divided and multiplied by it
_COLLAPSED_RANGE = (0.5, 20.0)  # nats, where the plain VAE's KL is next to nothing


class Budget(NamedTuple):
    """What may be spent on a search, and what is to be best.

    Attributes:
        steps: Number of steps of the one network that is trained.
        objective: `elbo`, `iwae`, `fid`, or a function of a run whose value is to be high.
    """

    steps: int
    objective: Objective = "elbo"


def make_budget(steps: int | None, objective: Objective | str | None) -> Budget | None:
    """Return a budget, or None without steps.

    Raises:
        UserError: If an objective has no budget, or is unknown.
    """
    if steps is None:
        if objective is not None:
            raise UserError("an objective needs a budget of steps: add --budget 20000")
        return None
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 10:
        raise UserError(f"budget must be a number of steps, at least 10, got {steps!r}")
    chosen: Any = objective or "elbo"
    check_objective(chosen)
    return Budget(steps, chosen)


def search_range(advice: Advice) -> RateRange:
    """Return the rates to search: those near the plain VAE's KL that the law can reach."""
    kl, reachable = advice.band.low, advice.reachable
    low, high = kl / _FACTOR, kl * _FACTOR
    if high < _COLLAPSED_RANGE[0] * _FACTOR:
        low, high = _COLLAPSED_RANGE
    high = min(high, reachable.high)
    # The weight of a rate-conditioned network has no upper bound, so a lower rate is in reach.
    return RateRange(min(low, high / _FACTOR), high)


def find_within_budget(
    preset: str,
    advice: Advice,
    budget: Budget,
    options: RunOptions,
    *,
    path: Path,
    overrides: Overrides = None,
) -> tuple[FoundTarget, list[str]]:
    """Find the best set point by training one network for many rates.

    Args:
        preset: Name of a preset, or the place of a definition.
        advice: What the plain VAE and the bounds of the law said.
        budget: Steps to spend, and the objective.
        options: How to execute the training.
        path: Folder of the search.
        overrides: Settings to change.

    Returns:
        The result, and human-readable lines.
    """
    within = search_range(advice)
    found = find_best_target(
        preset,
        within,
        options,
        budget.objective,
        steps=budget.steps,
        run=path,
        overrides=overrides,
    )
    use = shell_command("train", preset, "--set", f"control=Auto({found.target:.4g})")
    lines = [
        f"searched {within.low:.3g} to {within.high:.3g} nats in {budget.steps:,} steps: "
        f"{found.reason}",
        f"path of the search: {found.files[-1]}",
        f"train one model there with: {use}",
    ]
    return found, lines
