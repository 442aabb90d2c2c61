"""Learned perceptual image patch similarity (LPIPS) of pairs of images, by torchmetrics."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from controlvae.metrics._packages import require
from controlvae.metrics.image.ssim import image_pair

Network = Literal["alex", "vgg", "squeeze"]

# Files of torchvision, in torch's cache.
WEIGHTS: dict[Network, str] = {
    "alex": "alexnet-owt-7be5be79.pth",
    "vgg": "vgg16-397923af.pth",
    "squeeze": "squeezenet1_1-b8a52dc0.pth",
}
_ADDRESS = "https://download.pytorch.org/models"
_SMALLEST = 32  # AlexNet pools smaller images away


@torch.no_grad()
def lpips(images_a: Any, images_b: Any, *, network: Network = "alex") -> Tensor:
    r"""Compute the perceptual distance of each pair of images.

    .. math::
        \sum_l \frac1{H_l W_l} \sum_{hw}
        \big\| w_l \odot (\hat y_{hw}^l - \hat y'^l_{hw}) \big\|^2

    :math:`\hat y^l` are activations of layer l of a classifier, scaled to unit length over
    channels; :math:`w_l` was fitted to people's judgements (Zhang et al., *The unreasonable
    effectiveness of deep features as a perceptual metric*, 2018). 0 for equal images, lower is
    better. The networks give different values: papers use AlexNet for evaluation.

    Needs `torchmetrics` and `torchvision`, and the classifier's weights in torch's cache. Nothing
    is downloaded: an error names the file and its address.

    Args:
        images_a: Images in [0, 1], (n, 1 or 3 channels, height, width), at least 32 x 32.
        images_b: Images to compare them with, same shape.
        network: AlexNet, VGG-16 or SqueezeNet.

    Returns:
        Distances, (n,).
    """
    if network not in WEIGHTS:
        raise ValueError(f"network must be one of {', '.join(WEIGHTS)}, got {network!r}")
    a, b = image_pair(images_a, images_b)
    if a.shape[1] not in (1, 3) or min(a.shape[2:]) < _SMALLEST:
        raise ValueError(
            f"images must have 1 or 3 channels and at least {_SMALLEST} x {_SMALLEST} pixels, got "
            f"shape {tuple(a.shape)}"
        )
    model = _load(network, str(weights_file(network))).to(a.device)
    a, b = (image.float().clamp(0, 1).expand(-1, 3, -1, -1) for image in (a, b))
    value: Tensor = model.net(a, b, normalize=True)
    return value.reshape(len(a))


def weights_file(network: Network) -> Path:
    """Return the file of a classifier's weights in torch's cache.

    Raises:
        FileNotFoundError: It is not there.
    """
    file = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS[network]
    if not file.is_file():
        raise FileNotFoundError(
            f"LPIPS needs the weights {file}; download them with: curl --create-dirs -o {file} "
            f"{_ADDRESS}/{file.name}"
        )
    return file


@lru_cache(maxsize=1)
def _load(network: Network, file: str) -> Any:
    """Return torchmetrics' metric. It reads `file`, which has been found, from torch's cache."""
    require("LPIPS", "torchvision", "torchmetrics torchvision")
    image = require("LPIPS", "torchmetrics.image.lpip", "torchmetrics torchvision")
    return image.LearnedPerceptualImagePatchSimilarity(net_type=network, normalize=True)
