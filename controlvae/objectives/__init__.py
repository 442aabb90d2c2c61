"""Likelihoods, KL and the terms of an objective, in nats per example."""

from controlvae.objectives.terms import Terms, bernoulli, elbo_terms, gaussian_kl

__all__ = ["Terms", "bernoulli", "elbo_terms", "gaussian_kl"]
