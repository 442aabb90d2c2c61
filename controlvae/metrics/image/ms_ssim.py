"""Multi-scale structural similarity (MS-SSIM) of pairs of images, computed by torchmetrics."""

from typing import Any

from torch import Tensor

from controlvae.metrics._packages import require
from controlvae.metrics._validation import check_at_least
from controlvae.metrics.image.ssim import image_pair

_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # of the paper, from fine to coarse
_WINDOW = 11


def ms_ssim(images_a: Any, images_b: Any, *, scales: int | None = None) -> Tensor:
    r"""Compute the multi-scale structural similarity of each pair of images.

    .. math:: l_S^{w_S} \prod_{s=1}^{S} (c_s \, t_s)^{w_s}

    :math:`c_s t_s` compares contrast and structure after s - 1 halvings, :math:`l_S` the brightness
    at the coarsest of them (Wang et al., *Multiscale structural similarity for image quality
    assessment*, 2003). The paper has five scales, which need images of 176 pixels. Smaller images
    get as many as fit (64 pixels: three), with the paper's weights scaled to sum to 1: compare
    values only at an equal number of scales. Needs `torchmetrics`, whose windows at a border are
    mirrored.

    Args:
        images_a: Images in [0, 1], (n, channels, height, width), at least 11 x 11.
        images_b: Images to compare them with, same shape.
        scales: Number of scales; None takes as many as fit, at most five.

    Returns:
        Similarities in [0, 1], (n,); 1 for equal images.

    >>> ms_ssim(torch.rand(2, 1, 64, 64), torch.rand(2, 1, 64, 64)).shape
    torch.Size([2])
    """
    a, b = image_pair(images_a, images_b)
    side = min(a.shape[2:])
    most = max_scales(side)
    chosen = most if scales is None else scales
    check_at_least(1, scales=chosen)
    if chosen > most:
        raise ValueError(f"images of {side} pixels allow {most} scales, got scales={chosen}")
    functional = require("MS-SSIM", "torchmetrics.functional.image", "torchmetrics")
    weights = tuple(weight / sum(_WEIGHTS[:chosen]) for weight in _WEIGHTS[:chosen])
    # torchmetrics averages over the batch if it has one element.
    value: Tensor = functional.multiscale_structural_similarity_index_measure(
        a, b, reduction="none", data_range=1.0, betas=weights
    )
    return value.reshape(len(a))


def max_scales(side: int) -> int:
    """Return the number of scales that images with a shorter side of so many pixels allow.

    >>> [max_scales(side) for side in (28, 64, 128, 256)]
    [2, 3, 4, 5]
    """
    if side < _WINDOW:
        raise ValueError(f"images must be at least {_WINDOW} x {_WINDOW}, got {side} pixels")
    # The window fits into the coarsest scale; torchmetrics' own bound is stricter for four scales.
    smallest = (lambda n: side // 2 ** (n - 1), lambda n: side // max(1, n - 1) ** 2)
    return max(n for n in range(1, 6) if all(size(n) >= _WINDOW for size in smallest))
