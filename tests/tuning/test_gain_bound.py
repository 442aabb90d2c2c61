"""The paper's bound on the gain in reconstruction, and the band of targets, are heuristics.

The proof of its theorem 1 (appendix) bounds a difference of expectations under two posteriors by the
distance of their means. It ignores their variances and assumes a Lipschitz constant of 1. The tests
show a pair of posteriors that breaks the step, and a VAE that breaks the bound.
"""

import math

import pytest
import torch

import controlvae as cv

NOISE = 0.5  # variance of the decoder: the sum of squared errors
VARIANCE = math.e * NOISE  # of the data: half a nat per latent at β = 1


def train_linear_vae(beta):
    """Return reconstruction loss and KL of a linear VAE of one latent, at its optimum for `beta`."""
    decoder, encoder, log_variance = parameters = [
        torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.7, 0.7, -0.5)
    ]
    optimiser = torch.optim.LBFGS(parameters, max_iter=500, line_search_fn="strong_wolfe")

    def terms():
        error = (1 - decoder * encoder) ** 2 * VARIANCE + decoder**2 * log_variance.exp()
        kl = (encoder**2 * VARIANCE + log_variance.exp() - 1 - log_variance) / 2
        return error / (2 * NOISE), kl

    def closure():
        optimiser.zero_grad()
        reconstruction, kl = terms()
        loss = reconstruction + beta * kl
        loss.backward()
        return loss

    optimiser.step(closure)
    return tuple(term.item() for term in terms())


def test_the_distance_of_the_means_does_not_bound_the_difference_of_expectations():
    """Take f(z) = -|z|, which is 1-Lipschitz, under N(0, 1) and N(0, 4)."""
    z = torch.linspace(-40, 40, 80_001, dtype=torch.float64)

    def expectation(standard_deviation):
        density = torch.distributions.Normal(0.0, standard_deviation).log_prob(z).exp()
        return torch.trapezoid(-z.abs() * density, z).item()

    difference, distance_of_means = expectation(1.0) - expectation(2.0), 0.0
    assert difference == pytest.approx(math.sqrt(2 / math.pi), rel=1e-4)
    assert difference > distance_of_means


def test_the_band_is_where_the_upper_bound_exceeds_its_cost():
    """The band's end solves bound(d) = d, which says nothing of the gain itself."""
    for kl_vae in (0.0, 12.8, 118.0):
        d = cv.target_range(kl_vae).high - kl_vae
        assert cv.gain_bound(kl_vae, d) == pytest.approx(d)


def test_a_linear_vae_of_1000_latents_exceeds_the_bound():
    # Independent latents: all terms are 1,000 times those of one.
    (plain, plain_kl), (better, kl) = [
        [1_000 * term for term in train_linear_vae(beta)] for beta in (1.0, 0.8)
    ]
    gain, d = plain - better, kl - plain_kl
    assert plain_kl == pytest.approx(500.0, rel=1e-4)
    assert gain == pytest.approx(100.0, rel=1e-3)
    bound = cv.gain_bound(plain_kl, d)
    assert bound == pytest.approx(66.7, abs=0.1)
    assert gain > bound
    # The formula for the price in ELBO is exact here.
    assert d - gain == pytest.approx(cv.elbo_cost(d, 1_000), rel=1e-3)
