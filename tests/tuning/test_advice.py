"""Advice on set points: by purpose, with its cost in ELBO."""

import math

import pytest

import controlvae as cv
from controlvae.tuning.advice import PURPOSES


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("kl_vae", [0.0, 12.8, 118.0])
def test_targets_lie_within_reach_and_cost_nothing_at_the_plain_kl(purpose, kl_vae):
    advice = cv.advise(kl_vae, 0.0, 200.0, purpose=purpose, latents=10)
    assert advice.purpose == purpose
    assert 0 <= advice.target <= 200
    assert advice.cost >= 0
    assert (advice.cost == 0) == (advice.target == kl_vae)
    assert "cost in ELBO" in str(advice)


def test_only_reconstruction_asks_for_more_than_the_plain_vae():
    targets = {name: cv.advise(20.0, purpose=name).target for name in PURPOSES}
    assert targets["reconstruction"] > 20
    assert targets["disentangling"] < 20
    assert targets["elbo"] == targets["rate"] == targets["no-collapse"] == 20


def test_a_collapsed_code_costs_its_nats_at_most():
    advice = cv.advise(0.01, purpose="no-collapse", latents=0)
    assert (advice.target, advice.cost) == (3.0, pytest.approx(2.99))
    assert "at most" in str(advice)
    assert cv.advise(0.01, purpose="elbo", latents=0).target == 0.01


def test_a_target_below_the_reach_of_the_law_says_what_to_change():
    advice = cv.advise(20.0, 20.0, 60.0, purpose="disentangling")
    assert advice.target < 20
    assert "beta_max=inf" in advice.reason
    assert "beta_max=inf" not in cv.advise(20.0, 5.0, 60.0, purpose="disentangling").reason


def test_without_latents_no_cost_is_shown():
    advice = cv.advise(118.0)
    assert advice.cost is None
    assert "cost" not in str(advice)


def test_measure_target_passes_the_purpose_on():
    advice = cv.measure_target(
        lambda weight: 12.0 * (weight + 0.1) ** -0.4, purpose="rate", latents=4
    )
    assert advice.target == pytest.approx(12.0 * 1.1**-0.4)
    assert advice.cost == 0
    again = cv.measure_target(lambda weight: 12.0 * (weight + 0.1) ** -0.4, latents=4)
    x = 2 * (again.target - again.band.low) / 4
    assert again.cost == pytest.approx(2 * (x - 1 + math.exp(-x)))


def test_an_unknown_purpose_is_refused():
    with pytest.raises(ValueError, match=r"purpose must be one of reconstruction, .*'fun'"):
        cv.advise(20.0, purpose="fun")
