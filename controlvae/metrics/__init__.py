"""Metrics as functions of arrays: usable on anyone's model. Plain numbers or a named record come out."""

from controlvae.metrics.dci import DCI, dci
from controlvae.metrics.information import active_units
from controlvae.metrics.mig import MIG, mig, mig_histogram, mig_sampled
from controlvae.metrics.modularity import Modularity, modularity
from controlvae.metrics.rmig import rmig
from controlvae.metrics.sap import SAP, sap
from controlvae.metrics.shared_value import BetaVAEScore, FactorVAEScore, beta_vae_score, factor_vae_score
from controlvae.metrics.step_response import StepResponse, step_response

__all__ = [
    "DCI",
    "MIG",
    "SAP",
    "BetaVAEScore",
    "FactorVAEScore",
    "Modularity",
    "StepResponse",
    "active_units",
    "beta_vae_score",
    "dci",
    "factor_vae_score",
    "mig",
    "mig_histogram",
    "mig_sampled",
    "modularity",
    "rmig",
    "sap",
    "step_response",
]
