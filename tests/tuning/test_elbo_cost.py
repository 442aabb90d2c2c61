"""Cost of a target in ELBO, against its derivation and measurements."""

import math

import pytest
from scipy import integrate

import controlvae as cv


@pytest.mark.parametrize("d", [-3.0, 0.0, 1e-4, 2.0, 40.0])
@pytest.mark.parametrize("latents", [1, 10, 500])
def test_cost_is_the_integral_of_one_minus_beta(d, latents):
    expected, _ = integrate.quad(lambda s: 1 - math.exp(-2 * s / latents), 0, d)
    assert cv.elbo_cost(d, latents) == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert cv.elbo_cost(d, latents) >= 0


def test_small_distances_cost_their_square_over_the_latents():
    assert cv.elbo_cost(0.01, 100) == pytest.approx(0.01**2 / 100, rel=1e-3)


@pytest.mark.parametrize(("d", "measured"), [(22.9, 5.4), (37.4, 11.4)])
def test_cost_is_near_that_of_cifar10(d, measured):
    """Compare with results/images/theorem-128.csv: 100 latents, one seed."""
    assert cv.elbo_cost(d, 100) == pytest.approx(measured, abs=1.0)


@pytest.mark.parametrize("budget", [0.0, 0.3, 5.0, 200.0])
def test_target_for_inverts_the_cost(budget):
    target = cv.target_for(budget, kl_vae=20.0, latents=10)
    assert cv.elbo_cost(target - 20.0, 10) == pytest.approx(budget, abs=1e-6)


@pytest.mark.parametrize("latents", [0, -1, 2.5, True, "3"])
def test_latents_must_be_a_positive_integer(latents):
    with pytest.raises(ValueError, match="latents must be a positive integer"):
        cv.elbo_cost(1.0, latents)


def test_other_arguments_are_checked():
    with pytest.raises(ValueError, match="inf"):
        cv.elbo_cost(math.inf, 3)
    with pytest.raises(ValueError, match="-1"):
        cv.target_for(-1.0, 20.0, 3)
    with pytest.raises(ValueError, match="nan"):
        cv.target_for(1.0, math.nan, 3)
