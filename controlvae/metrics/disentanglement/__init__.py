"""Disentanglement scores of codes against ground-truth factors."""

from controlvae.metrics.disentanglement.beta_vae import BetaVAEScore, beta_vae_score
from controlvae.metrics.disentanglement.dci import DCI, dci
from controlvae.metrics.disentanglement.dci_es import DCIES, dci_es
from controlvae.metrics.disentanglement.explicitness import Explicitness, explicitness
from controlvae.metrics.disentanglement.factor_vae import FactorVAEScore, factor_vae_score
from controlvae.metrics.disentanglement.infomec import InfoMEC, infomec
from controlvae.metrics.disentanglement.mig import MIG, mig, mig_histogram, mig_sampled
from controlvae.metrics.disentanglement.mig_sup import MIGSup, mig_sup
from controlvae.metrics.disentanglement.modularity import Modularity, modularity
from controlvae.metrics.disentanglement.rmig import rmig
from controlvae.metrics.disentanglement.sap import SAP, sap
from controlvae.metrics.disentanglement.udr import UDR, udr

__all__ = [
    "DCI",
    "DCIES",
    "MIG",
    "SAP",
    "UDR",
    "BetaVAEScore",
    "Explicitness",
    "FactorVAEScore",
    "InfoMEC",
    "MIGSup",
    "Modularity",
    "beta_vae_score",
    "dci",
    "dci_es",
    "explicitness",
    "factor_vae_score",
    "infomec",
    "mig",
    "mig_histogram",
    "mig_sampled",
    "mig_sup",
    "modularity",
    "rmig",
    "sap",
    "udr",
]
