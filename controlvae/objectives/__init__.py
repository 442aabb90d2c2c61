"""Likelihoods, KL, total correlation and the terms of an objective, in nats per example."""

from controlvae.objectives.bound import Bound, measure_bound
from controlvae.objectives.terms import (
    Divergence,
    Terms,
    bag_terms,
    bernoulli,
    divergence,
    elbo_terms,
    gaussian,
    gaussian_kl,
    pixel_cost,
    reconstruction_of,
    squared_error,
)
from controlvae.objectives.total_correlation import least_correlation

__all__ = [
    "Bound", "Divergence", "Terms", "bag_terms", "bernoulli", "divergence", "elbo_terms", "gaussian", "gaussian_kl",
    "least_correlation", "measure_bound", "pixel_cost", "reconstruction_of", "squared_error",
]  # fmt: skip
