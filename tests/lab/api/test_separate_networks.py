"""Rate-distortion curves of separate networks that continue from their neighbours."""

import numpy as np
import pytest
from rate_curves import QUIET, TINY, SmallVAE

from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.api.separate_networks import plan_stages
from controlvae.lab.evaluation.rate_curve import RateCurve
from controlvae.lab.runs.folder import RunFolder

STEPS = 1_200
SETTINGS = {
    "rates": (2, 10),
    "points": 6,
    "examples": 500,
    "overrides": {**TINY, "training.steps": STEPS},
    "separate": True,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("separate") / "curve"
    return lab.curve("shapes2d-quick", run=path, **SETTINGS, **QUIET)


def test_stages_double_no_work_and_only_descend(tmp_path):
    rates = tuple(np.geomspace(3, 24, 25))
    first, second, last = plan_stages(rates, 1_000, tmp_path)
    assert [stage.steps for stage in (first, second, last)] == [600, 800, 1_000]
    assert first.rates == (rates[-1],)
    assert len(second.rates) == 5
    assert last.rates == rates[::-1]
    for before, stage in ((first, second), (second, last)):
        for rate in stage.rates:
            parent = before.parent_rate(rate)
            assert parent >= rate
            assert not any(rate <= each < parent for each in before.rates)
    (only,) = plan_stages((4.0,), 10, tmp_path)
    assert only.rates == (4.0,)


def test_each_point_has_a_network_with_all_steps(measured):
    assert len(measured.networks) == 6
    assert {run.step for run in measured.networks} == {STEPS}
    targets = [run.experiment.control.target for run in measured.networks]
    assert targets == pytest.approx(np.geomspace(2, 10, 6).tolist())
    losses = [point.reconstruction for point in measured.curve.points]
    assert losses[0] > losses[3] > losses[5]
    assert max(abs(point.error) for point in measured.curve.points) < 0.25
    assert measured.at(9.0).experiment.control.target == pytest.approx(10.0)


def test_networks_continue_from_the_neighbour_above(measured):
    lowest = measured.networks[0].folder
    branched = [event for event in lowest.events() if event["event"] == "branched"]
    assert [event["step"] for event in branched] == [720, 960]
    assert "stage-2" in branched[-1]["from"]
    parent = RunFolder(lowest.path.parents[1] / "stage-1" / "rate-10")
    steps = [record["step"] for record in parent.records()]
    shared = [record for record in lowest.records() if record["step"] <= 720]
    assert [record["step"] for record in shared] == steps
    assert shared == parent.records()


def test_curve_is_written_and_the_same_call_trains_nothing_again(measured):
    path = measured.networks[0].folder.path.parents[1]
    assert RateCurve.read(RunFolder(path)) == measured.curve
    assert (path / "figures" / "curve-images.png").stat().st_size > 10_000
    before = {run.folder.path: run.folder.log_file.read_bytes() for run in measured.networks}
    again = lab.curve("shapes2d-quick", run=path, **SETTINGS, **QUIET)
    assert again.curve == measured.curve
    assert all(where.joinpath("log.jsonl").read_bytes() == log for where, log in before.items())
    with pytest.raises(UserError, match="has its own network"):
        measured.curve.setting_for(4.0)


def test_other_settings_and_a_short_time_limit_are_refused(measured, tmp_path):
    path = measured.networks[0].folder.path.parents[1]
    with pytest.raises(UserError, match="other settings"):
        lab.curve("shapes2d-quick", run=path, **{**SETTINGS, "overrides": {}}, **QUIET)
    with pytest.raises(UserError, match="the same command continues"):
        lab.curve("shapes2d-quick", run=tmp_path / "new", time_limit=0.01, **SETTINGS, **QUIET)


def test_model_of_the_user_has_a_network_per_rate(tmp_path):
    draws = np.random.default_rng(0)
    data = (draws.normal(size=(500, 3)) @ draws.normal(size=(3, 12))).astype(np.float32)
    result = lab.curve(
        SmallVAE(),
        data,
        rates=(1, 6),
        points=3,
        steps=400,
        learning_rate=5e-3,
        batch=64,
        separate=True,
        run=tmp_path / "mine",
        **QUIET,
    )
    losses = [point.reconstruction for point in result.curve.points]
    assert losses == sorted(losses, reverse=True)
    assert result.curve.largest_error < 0.2
