"""Similarity of pairs of images: peak signal-to-noise ratio and structural similarity."""

from typing import Any

import torch
from torch import Tensor

from controlvae.laws.backend import widest_float

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


def psnr(images_a: Any, images_b: Any) -> Tensor:
    r"""Compute the peak signal-to-noise ratio of each pair of images.

    .. math:: 10 \log_{10}(1 / \mathrm{MSE})

    Wang et al., *Image quality assessment: from error visibility to structural similarity*, 2004,
    compare it with SSIM.

    Args:
        images_a: Images in [0, 1], (n, channels, height, width).
        images_b: Images to compare them with, same shape.

    Returns:
        Ratios in dB, (n,); infinite for equal images.

    >>> round(psnr(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1)).item(), 4)
    20.0
    """
    a, b = image_pair(images_a, images_b)
    return -10 * torch.log10((a - b).square().flatten(1).mean(1))


def ssim(images_a: Any, images_b: Any) -> Tensor:
    r"""Compute the structural similarity of each pair of images.

    .. math:: \frac{(2 \mu_a \mu_b + C_1)(2 \sigma_{ab} + C_2)}
                   {(\mu_a^2 + \mu_b^2 + C_1)(\sigma_a^2 + \sigma_b^2 + C_2)}

    Wang et al., *Image quality assessment: from error visibility to structural similarity*, 2004,
    with its constants: a Gaussian window of 11 x 11 with σ = 1.5, K₁ = 0.01, K₂ = 0.03. The mean is
    over channels and over the positions of the window inside the image, as in the authors' program.
    (torchmetrics includes mirrored borders.)

    Args:
        images_a: Images in [0, 1], (n, channels, height, width), at least 11 x 11.
        images_b: Images to compare them with, same shape.

    Returns:
        Similarities, (n,); 1 for equal images.

    >>> ssim(torch.ones(1, 1, 16, 16), torch.ones(1, 1, 16, 16)).tolist()
    [1.0]
    """
    a, b = image_pair(images_a, images_b)
    if min(a.shape[2:]) < _WINDOW:
        raise ValueError(
            f"images must be at least {_WINDOW} x {_WINDOW}, got {a.shape[3]} x {a.shape[2]}"
        )
    mean_a, mean_b, square_a, square_b, product = _blur(torch.stack([a, b, a * a, b * b, a * b]))
    variance_a, variance_b = square_a - mean_a**2, square_b - mean_b**2
    covariance = product - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + _C1) / (mean_a**2 + mean_b**2 + _C1)
    structure = (2 * covariance + _C2) / (variance_a + variance_b + _C2)
    return (luminance * structure).flatten(1).mean(1)


def _blur(images: Tensor) -> Tensor:
    """Average under the window by two matrix products. A convolution is ten times slower."""
    down, across = (_window(size, images) for size in images.shape[-2:])
    return down @ images @ across.T


def _window(size: int, like: Tensor) -> Tensor:
    """Return the weights of every window position in `size` pixels, (size - 10, size)."""
    pixel = torch.arange(size, dtype=like.dtype, device=like.device)
    middle = pixel[: size - _WINDOW + 1, None] + _WINDOW // 2
    inside = (pixel - middle).abs() <= _WINDOW // 2
    weight = torch.exp(-((pixel - middle) ** 2) / (2 * _SIGMA**2)) * inside
    return weight / weight.sum(1, keepdim=True)


def image_pair(images_a: Any, images_b: Any) -> tuple[Tensor, Tensor]:
    """Check two arrays of images and convert them to the widest float of their devices."""
    a, b = torch.as_tensor(images_a), torch.as_tensor(images_b)
    if a.shape != b.shape or a.ndim != 4:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(
            f"images must be two arrays (n, channels, height, width) of equal shape, got {shapes}"
        )
    if not (a.is_floating_point() and b.is_floating_point()):
        raise ValueError(
            f"images must be floats in [0, 1], got {a.dtype} and {b.dtype}; divide bytes by 255"
        )
    return a.to(widest_float(a.device)), b.to(widest_float(b.device))
