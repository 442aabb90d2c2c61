"""Image quality: FID, KID, SSIM and PSNR."""

from controlvae.metrics.image.fid import FID, Moments, fid, moments
from controlvae.metrics.image.kid import KID, kid
from controlvae.metrics.image.ssim import psnr, ssim

__all__ = ["FID", "KID", "Moments", "fid", "kid", "moments", "psnr", "ssim"]
