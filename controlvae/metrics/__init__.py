"""Metrics as functions of arrays. Each returns a plain number or a named record."""

from controlvae.metrics.disentanglement.beta_vae import BetaVAEScore, beta_vae_score
from controlvae.metrics.disentanglement.dci import DCI, dci
from controlvae.metrics.disentanglement.factor_vae import FactorVAEScore, factor_vae_score
from controlvae.metrics.disentanglement.mig import MIG, mig, mig_histogram, mig_sampled
from controlvae.metrics.disentanglement.modularity import Modularity, modularity
from controlvae.metrics.disentanglement.rmig import rmig
from controlvae.metrics.disentanglement.sap import SAP, sap
from controlvae.metrics.image.fid import FID, Moments, fid, moments
from controlvae.metrics.image.kid import KID, kid
from controlvae.metrics.image.ssim import psnr, ssim
from controlvae.metrics.information import MutualInformation, active_units, mutual_information
from controlvae.metrics.likelihood import bits_per_dimension, dequantization_offset, iwae
from controlvae.metrics.likelihood import dequantised as dequantised  # name in version 0.1
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
    "Modularity",
    "Moments",
    "MutualInformation",
    "StepResponse",
    "active_units",
    "beta_vae_score",
    "bits_per_dimension",
    "bleu",
    "dci",
    "dequantization_offset",
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
