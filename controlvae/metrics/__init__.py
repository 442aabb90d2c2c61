"""Metrics as functions of arrays. Each returns a plain number or a named record."""

from controlvae.metrics.corpus_bleu import CorpusBLEU, corpus_bleu
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
from controlvae.metrics.image.fid import FID, Moments, fid, moments
from controlvae.metrics.image.kid import KID, kid
from controlvae.metrics.image.lpips import lpips
from controlvae.metrics.image.ms_ssim import ms_ssim
from controlvae.metrics.image.prdc import PRDC, prdc
from controlvae.metrics.image.ssim import psnr, ssim
from controlvae.metrics.information import MutualInformation, active_units, mutual_information
from controlvae.metrics.likelihood import bits_per_dimension, dequantization_offset, iwae
from controlvae.metrics.likelihood import dequantised as dequantised  # name in version 0.1
from controlvae.metrics.mauve import MAUVE, mauve
from controlvae.metrics.step_response import StepResponse, step_response
from controlvae.metrics.text import Distinct, bleu, distinct_n, perplexity, self_bleu
from controlvae.metrics.total_correlation import gaussian_total_correlation

__all__ = [
    "DCI",
    "DCIES",
    "FID",
    "KID",
    "MAUVE",
    "MIG",
    "PRDC",
    "SAP",
    "UDR",
    "BetaVAEScore",
    "CorpusBLEU",
    "Distinct",
    "Explicitness",
    "FactorVAEScore",
    "InfoMEC",
    "MIGSup",
    "Modularity",
    "Moments",
    "MutualInformation",
    "StepResponse",
    "active_units",
    "beta_vae_score",
    "bits_per_dimension",
    "bleu",
    "corpus_bleu",
    "dci",
    "dci_es",
    "dequantization_offset",
    "distinct_n",
    "explicitness",
    "factor_vae_score",
    "fid",
    "gaussian_total_correlation",
    "infomec",
    "iwae",
    "kid",
    "lpips",
    "mauve",
    "mig",
    "mig_histogram",
    "mig_sampled",
    "mig_sup",
    "modularity",
    "moments",
    "ms_ssim",
    "mutual_information",
    "perplexity",
    "prdc",
    "psnr",
    "rmig",
    "sap",
    "self_bleu",
    "ssim",
    "step_response",
    "udr",
]
