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


def gaussian_frontier(eigenvalues, beta):
    """Return distortion and rate of a linear VAE at its optimum, decoder variance 1.

    This is reverse water-filling: the optimum of the Gaussian rate-distortion problem.
    """
    used = [value for value in eigenvalues if value > beta]
    unused = [value for value in eigenvalues if value <= beta]
    distortion = (beta * len(used) + sum(unused)) / 2
    return distortion, sum(math.log(value / beta) for value in used) / 2


def measured_cost(eigenvalues, beta):
    """Return d and the cost in ELBO of the optimum for `beta`, against that for 1."""
    (distortion, rate), (plain_distortion, plain_rate) = (
        gaussian_frontier(eigenvalues, weight) for weight in (beta, 1.0)
    )
    return rate - plain_rate, distortion + rate - plain_distortion - plain_rate


@pytest.mark.parametrize("beta", [0.3, 0.8, 1.0, 2.5])
def test_cost_is_exact_for_gaussians_whose_latents_stay_used(beta):
    d, cost = measured_cost([4.0, 7.0, 90.0], beta)
    assert cost == pytest.approx(cv.elbo_cost(d, 3), abs=1e-12)


def test_latents_that_come_into_use_make_targets_cheaper():
    d, cost = measured_cost([9.0, 5.0, *[0.9] * 20], 0.5)
    assert d > 0
    assert 0 < cost < cv.elbo_cost(d, 2)


def test_latents_that_drop_out_make_low_targets_dearer():
    d, cost = measured_cost([9.0, 5.0, *[1.1] * 20], 4.0)
    assert d < 0
    assert cost > cv.elbo_cost(d, 22)


def test_a_collapsed_vae_pays_in_proportion_to_its_nats():
    """At β = 1 no latent is used; the first one comes into use at β = 0.8."""
    costs = []
    for beta in (0.79, 0.78, 0.77):
        d, cost = measured_cost([0.8], beta)
        assert 0 < cost < d
        costs.append(cost / d)
    assert costs == pytest.approx([1 - 0.8] * 3, abs=0.02)


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
