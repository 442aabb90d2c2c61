"""How like two pictures are: peak signal-to-noise ratio and structural similarity, picture by picture."""

from typing import Any

import torch
from torch import Tensor

from controlvae.laws.backend import widest_float

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


def psnr(pictures_a: Any, pictures_b: Any) -> Tensor:
    """10 log₁₀(1 / mean squared error) of each pair, in dB; infinite where the two are equal. (n,)

    Args:
        pictures_a: (n, channels, height, width) in [0, 1].
        pictures_b: the same.
    """
    a, b = _pair(pictures_a, pictures_b)
    return -10 * torch.log10((a - b).square().flatten(1).mean(1))


def ssim(pictures_a: Any, pictures_b: Any) -> Tensor:
    """Structural similarity of each pair, 1 where the two are equal. (n,)

    Wang et al., *Image quality assessment: from error visibility to structural similarity*, 2004, with its constants:
    a Gaussian window of 11 x 11 with σ = 1.5, K₁ = 0.01, K₂ = 0.03. The mean over channels and over the places where
    the window lies inside the picture, as in the authors' program (torchmetrics counts mirrored borders as well).

    Args:
        pictures_a: (n, channels, height, width) in [0, 1], both sides 11 or more.
        pictures_b: the same.
    """
    a, b = _pair(pictures_a, pictures_b)
    if min(a.shape[2:]) < _WINDOW:
        raise ValueError(
            f"pictures must be {_WINDOW} x {_WINDOW} or larger, got {a.shape[3]} x {a.shape[2]}"
        )
    mean_a, mean_b, square_a, square_b, product = _blurred(torch.stack([a, b, a * a, b * b, a * b]))
    variance_a, variance_b, covariance = (
        square_a - mean_a**2,
        square_b - mean_b**2,
        product - mean_a * mean_b,
    )
    luminance = (2 * mean_a * mean_b + _C1) / (mean_a**2 + mean_b**2 + _C1)
    structure = (2 * covariance + _C2) / (variance_a + variance_b + _C2)
    return (luminance * structure).flatten(1).mean(1)


def _blurred(pictures: Tensor) -> Tensor:
    """Under the window, which is a product of two, one down and one across. A convolution takes ten times as long."""
    down, across = (_window(size, pictures) for size in pictures.shape[-2:])
    return down @ pictures @ across.T


def _window(size: int, like: Tensor) -> Tensor:
    """A row for every place of the window inside so many pixels: (size - 10, size)."""
    pixel = torch.arange(size, dtype=like.dtype, device=like.device)
    middle = pixel[: size - _WINDOW + 1, None] + _WINDOW // 2
    weight = torch.exp(-((pixel - middle) ** 2) / (2 * _SIGMA**2)) * (
        (pixel - middle).abs() <= _WINDOW // 2
    )
    return weight / weight.sum(1, keepdim=True)


def _pair(pictures_a: Any, pictures_b: Any) -> tuple[Tensor, Tensor]:
    a, b = torch.as_tensor(pictures_a), torch.as_tensor(pictures_b)
    if a.shape != b.shape or a.ndim != 4:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(
            f"pictures must be two sets of (n, channels, height, width) alike, got {shapes}"
        )
    if not (a.is_floating_point() and b.is_floating_point()):
        raise ValueError(
            f"pictures must be floats in [0, 1], got {a.dtype} and {b.dtype}; divide bytes by 255"
        )
    return a.to(widest_float(a.device)), b.to(widest_float(b.device))
