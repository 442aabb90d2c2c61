"""Search for the best set point while one network trains."""

import json
import math

import numpy as np
import pytest
import torch
from command import within
from rate_curves import QUIET, TINY, SmallVAE
from tiny import sets

from controlvae import lab
from controlvae.distributions import gaussian_kl
from controlvae.errors import UserError
from controlvae.lab.api.find_target import find_target
from controlvae.lab.evaluation.target_score import best_rate

SMALL = {**TINY, "training.steps": 600}


@pytest.mark.parametrize("peak", [4.0, 7.3, 20.0])
def test_best_rate_is_the_vertex_between_measured_rates(peak):
    rates = tuple(np.geomspace(2, 40, 13))
    scores = [-((math.log(rate) - math.log(peak)) ** 2) for rate in rates]
    assert best_rate(rates, scores) == pytest.approx(peak, rel=1e-3)


def test_best_rate_at_an_edge_or_among_bad_values_is_a_measured_one():
    rates = tuple(np.geomspace(2, 40, 7))
    assert best_rate(rates, list(rates)) == rates[-1]
    scores = [1.0, 2.0, float("nan"), 3.0, 2.0, 1.0, float("-inf")]
    assert best_rate(rates, scores) == rates[3]


def test_search_closes_in_on_the_best_rate_and_resumes(tmp_path):
    def near_five(run):  # a function of the user
        posterior = run.vae.encode(run.examples.batch(torch.arange(200)))
        return -abs(math.log(gaussian_kl(posterior).sum(1).mean().item() / 5))

    settings = {"rates": (2, 20), "bins": 4, "examples": 300, "overrides": SMALL, **QUIET}
    path = tmp_path / "auto"
    found = find_target("shapes2d-quick", objective=near_five, run=path, **settings)
    assert found.target == pytest.approx(5, rel=0.1)
    assert [stage.step for stage in found.stages] == [300, 480, 600]
    spans = [stage.rates[-1] / stage.rates[0] for stage in found.stages]
    assert spans[0] > spans[1] > spans[2]
    assert found.stages[-1].rates[0] < 5 < found.stages[-1].rates[-1]
    assert json.loads((path / "target.json").read_text())["target"] == found.target
    assert (path / "target.png").stat().st_size > 10_000
    logs = [(path / f"stage-{n}" / "log.jsonl").read_bytes() for n in (1, 2, 3)]
    again = find_target("shapes2d-quick", objective=near_five, run=path, **settings)
    assert again.target == found.target
    assert logs == [(path / f"stage-{n}" / "log.jsonl").read_bytes() for n in (1, 2, 3)]
    assert logs[2].startswith(logs[1])
    assert found.run.sample(2).shape == (2, 1, 32, 32)


def test_fit_finds_the_target_of_a_model_of_the_user(tmp_path):
    draws = np.random.default_rng(0)
    data = draws.normal(size=(500, 3)) @ draws.normal(size=(3, 12)) + 0.5 * draws.normal(
        size=(500, 12)
    )
    chosen = {"target": "auto", "objective": "elbo", "rates": (0.5, 20), "bins": 4}
    options = {"steps": 1_000, "batch": 64, "learning_rate": 5e-3, **QUIET}
    run = lab.fit(SmallVAE(), data.astype(np.float32), run=tmp_path / "a", **chosen, **options)
    content = json.loads((tmp_path / "a" / "target.json").read_text())
    # The ELBO is best where a nat buys one nat, which is inside the range.
    assert 1 < content["target"] < 19
    assert content["objective"] == "ELBO"
    last = content["stages"][-1]["scores"]
    assert max(last) > content["stages"][0]["scores"][0]
    assert run.step == 1_000


def test_fit_takes_a_target_instead_of_a_law(tmp_path):
    data = np.random.default_rng(0).normal(size=(64, 12)).astype(np.float32)
    run = lab.fit(SmallVAE(), data, target=2.0, steps=5, run=tmp_path / "a", **QUIET)
    assert run.experiment.control.target == 2.0
    for wrong in ({}, {"target": 2.0, "law": run.experiment.control}, {"target": "high"}):
        with pytest.raises(UserError, match="pass"):
            lab.fit(SmallVAE(), data, steps=5, run=tmp_path / "b", **wrong, **QUIET)
    with pytest.raises(UserError, match="cannot be combined"):
        lab.fit(SmallVAE(), data, target="auto", steps=5, time_limit=3, **QUIET)
    with pytest.raises(UserError, match="objective must be elbo, iwae, fid"):
        lab.fit(SmallVAE(), data, target="auto", objective="mig", steps=5, **QUIET)
    assert not (tmp_path / "b").exists()


def test_command_finds_a_target(tmp_path):
    words = ["curve", "shapes2d-quick", "--rates", "2,20", "--find", "elbo", "--bins", "4"]
    small = sets(
        "training.steps=60", "data.images=200", "model.channels=(4,4,4)", "model.hidden=16"
    )
    done = within(*words, "--run", tmp_path / "a", "--device", "cpu", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ELBO on validation examples is best at" in done.stdout
    assert "controlvae train shapes2d-quick --set" in done.stdout


def test_stages_need_steps_of_their_own(tmp_path):
    with pytest.raises(UserError, match="4 steps or more, got 3"):
        lab.find_target("shapes2d-quick", rates=(2.0, 8.0), steps=3, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_time_limit_stops_the_search_between_checkpoints_and_it_resumes(tmp_path):
    line = ["curve", "shapes2d-quick", "--rates", "2,8", "--bins", "2", "--find", "elbo"]
    line += sets("data.images=64", "model.channels=(4,4,4)", "model.hidden=8", "training.batch=8")
    line += ["--run", tmp_path / "run", "--device", "cpu", "--examples", "8"]
    first = within(*line, "--set", "training.steps=8", "--time-limit", "0s", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "of 4; the same command resumes" in first.stdout
    assert not (tmp_path / "run" / "stage-2").exists()
    second = within(*line, "--set", "training.steps=8", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "best at" in second.stdout
