"""Searches for a set point within a budget of steps, from Python and the command line."""

import pytest
from command import within
from rate_curves import QUIET, TINY
from tiny import sets

from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.api.target_budget import make_budget, search_range
from controlvae.tuning import advise

SETTINGS = {**TINY, "training.log_every": 10}
SETTINGS.pop("training.steps")
OPTIONS = {**QUIET}
OPTIONS.pop("threads")


def test_range_lies_around_the_plain_kl_and_within_reach():
    within_reach = search_range(advise(12.0))
    assert (within_reach.low, within_reach.high) == (3.0, 48.0)
    collapsed = search_range(advise(0.01))
    assert (collapsed.low, collapsed.high) == (0.5, 20.0)


@pytest.mark.parametrize(
    ("steps", "objective", "message"),
    [
        (None, "elbo", "add --budget"),
        (3, None, "at least 10"),
        (True, None, "number of steps"),
        (100, "mig", "objective must be elbo, iwae, fid"),
    ],
)
def test_wrong_budgets_are_refused(steps, objective, message):
    with pytest.raises(UserError, match=message):
        make_budget(steps, objective)


def test_a_budget_is_spent_on_a_search(tmp_path):
    options = {"steps": 100, "run": tmp_path / "runs", "overrides": SETTINGS, **OPTIONS}
    result = lab.measure_target("shapes2d-quick", budget=300, **options)
    assert result.found.run.step == 300
    within_reach = search_range(result.advice)
    assert within_reach.low <= result.found.target <= within_reach.high
    assert (tmp_path / "runs" / "search" / "target.png").is_file()
    assert f"Auto({result.found.target:.4g})" in result.summary[-1]


def test_command_refuses_an_objective_without_a_budget(tmp_path):
    words = ["target", "shapes2d-quick", "--objective", "iwae", "--run", tmp_path / "runs"]
    done = within(*words, *sets("data.images=100"), cwd=tmp_path)
    assert done.returncode == 2
    assert "needs a budget of steps: add --budget" in done.stderr
    assert not (tmp_path / "runs").exists()
