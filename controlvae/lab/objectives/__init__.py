"""Objectives: one file each, with its settings and its loss terms, in nats per example."""

from controlvae.lab.objectives.bag_of_words import BagOfWords
from controlvae.lab.objectives.base import (
    CriticOutput,
    CriticSpec,
    Divergence,
    Objective,
    ObjectiveInputs,
    Terms,
    compute_divergence,
)
from controlvae.lab.objectives.beta_tc import BetaTC
from controlvae.lab.objectives.elbo import Elbo
from controlvae.lab.objectives.likelihood import Gaussian, Likelihood, describe_likelihood
from controlvae.lab.objectives.total_correlation import TotalCorrelation

# The objectives that an experiment may name. A new objective is a file in this folder and an entry
# here.
ObjectiveSettings = Elbo | TotalCorrelation | BetaTC | BagOfWords

__all__ = [
    "BagOfWords",
    "BetaTC",
    "CriticOutput",
    "CriticSpec",
    "Divergence",
    "Elbo",
    "Gaussian",
    "Likelihood",
    "Objective",
    "ObjectiveInputs",
    "ObjectiveSettings",
    "Terms",
    "TotalCorrelation",
    "compute_divergence",
    "describe_likelihood",
]
