"""Random controllers, as many as a minute of tests allows; `controllers.py` runs 20,000."""

import controllers


def test_random_controllers_stay_finite_within_bounds_and_resume():
    trials = list(controllers.run_trials(400))
    assert [(trial.law, trial.problems) for trial in trials if trial.problems] == []
    assert sum(trial.steps for trial in trials) > 5_000
    assert len({type(trial.law) for trial in trials}) > 12
