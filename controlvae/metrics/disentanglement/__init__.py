"""Disentanglement scores of codes against ground-truth factors."""

from controlvae.metrics.disentanglement.beta_vae import BetaVAEScore, beta_vae_score
from controlvae.metrics.disentanglement.dci import DCI, dci
from controlvae.metrics.disentanglement.factor_vae import FactorVAEScore, factor_vae_score
from controlvae.metrics.disentanglement.mig import MIG, mig, mig_histogram, mig_sampled
from controlvae.metrics.disentanglement.modularity import Modularity, modularity
from controlvae.metrics.disentanglement.rmig import rmig
from controlvae.metrics.disentanglement.sap import SAP, sap

__all__ = [
    "DCI",
    "MIG",
    "SAP",
    "BetaVAEScore",
    "FactorVAEScore",
    "Modularity",
    "beta_vae_score",
    "dci",
    "factor_vae_score",
    "mig",
    "mig_histogram",
    "mig_sampled",
    "modularity",
    "rmig",
    "sap",
]
