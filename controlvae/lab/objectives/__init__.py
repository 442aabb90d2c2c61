"""Likelihoods, KL, total correlation and the terms of an objective, in nats per example."""

from controlvae.lab.objectives.dataset_elbo import Bound, measure_bound
from controlvae.lab.objectives.elbo import (
    Divergence,
    Terms,
    bag_terms,
    divergence,
    elbo_terms,
    pixel_cost,
    reconstruction_of,
)
from controlvae.lab.objectives.total_correlation import least_correlation

__all__ = [
    "Bound",
    "Divergence",
    "Terms",
    "bag_terms",
    "divergence",
    "elbo_terms",
    "least_correlation",
    "measure_bound",
    "pixel_cost",
    "reconstruction_of",
]
