"""Image quality: distances of feature sets, and similarity of pairs of images."""

from controlvae.metrics.image.fid import FID, Moments, fid, moments
from controlvae.metrics.image.kid import KID, kid
from controlvae.metrics.image.lpips import lpips
from controlvae.metrics.image.ms_ssim import ms_ssim
from controlvae.metrics.image.prdc import PRDC, prdc
from controlvae.metrics.image.ssim import psnr, ssim

__all__ = [
    "FID",
    "KID",
    "PRDC",
    "Moments",
    "fid",
    "kid",
    "lpips",
    "moments",
    "ms_ssim",
    "prdc",
    "psnr",
    "ssim",
]
