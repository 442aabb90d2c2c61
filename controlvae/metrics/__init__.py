"""Metrics as functions of arrays: usable on anyone's model. Plain numbers or a named record come out."""

from controlvae.metrics.bound import bits_per_dimension, dequantised, iwae
from controlvae.metrics.dci import DCI, dci
from controlvae.metrics.frechet import FID, Moments, fid, moments
from controlvae.metrics.health import Health, Vitals
from controlvae.metrics.information import MutualInformation, active_units, mutual_information
from controlvae.metrics.kid import KID, kid
from controlvae.metrics.mig import MIG, mig, mig_histogram, mig_sampled
from controlvae.metrics.modularity import Modularity, modularity
from controlvae.metrics.rmig import rmig
from controlvae.metrics.sap import SAP, sap
from controlvae.metrics.shared_value import BetaVAEScore, FactorVAEScore, beta_vae_score, factor_vae_score
from controlvae.metrics.similarity import psnr, ssim
from controlvae.metrics.step_response import StepResponse, step_response
from controlvae.metrics.text import Distinct, bleu, distinct_n, perplexity, self_bleu

__all__ = [
    "DCI",
    "FID",
    "KID",
    "MIG",
    "SAP",
    "BetaVAEScore",
    "Distinct",
    "FactorVAEScore",
    "Health",
    "Modularity",
    "Moments",
    "MutualInformation",
    "StepResponse",
    "Vitals",
    "active_units",
    "beta_vae_score",
    "bits_per_dimension",
    "bleu",
    "dci",
    "dequantised",
    "distinct_n",
    "factor_vae_score",
    "fid",
    "iwae",
    "kid",
    "mig",
    "mig_histogram",
    "mig_sampled",
    "modularity",
    "moments",
    "mutual_information",
    "perplexity",
    "psnr",
    "rmig",
    "sap",
    "self_bleu",
    "ssim",
    "step_response",
]
