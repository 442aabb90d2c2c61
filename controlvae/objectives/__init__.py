"""Likelihoods, KL, total correlation and the terms of an objective, in nats per example."""

from controlvae.objectives.bound import Bound, measure_bound
from controlvae.objectives.terms import (
    LIKELIHOODS,
    Divergence,
    Terms,
    bag_terms,
    bernoulli,
    divergence,
    elbo_terms,
    gaussian_kl,
    reconstruction_of,
    squared_error,
)

__all__ = [
    "LIKELIHOODS", "Bound", "Divergence", "Terms", "bag_terms", "bernoulli", "divergence", "elbo_terms", "gaussian_kl",
    "measure_bound", "reconstruction_of", "squared_error",
]  # fmt: skip
