"""Parameter layouts: conversions between PyTorch's state dict and the kernels' order.

Feature maps are channels-last in the kernels and channels-first in PyTorch. Each function returns
the weight and the bias slot of one layer.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.lab.engines.stacked.parameters import Slot


def scalar_slot(name: str) -> Slot:
    """Return the slot of a single number per model."""
    return Slot(name, (), 1, _same, _same)


def channel_slot(name: str, channels: int, splits: int) -> Slot:
    """Return the slot of one number per channel, such as a bias.

    Args:
        name: Name in the PyTorch state dict.
        channels: Number of channels.
        splits: Partial gradients that the optimiser sums.
    """
    return Slot(name, (channels,), splits, _same, _same)


def conv_slots(name: str, large: int, small: int, splits: int, bias: Slot) -> list[Slot]:
    """Return the slots of a stride-2 layer.

    PyTorch stores (small, large, 4, 4) for both kinds of convolution, the kernels read
    (4, 4, large, small).

    Args:
        name: Name of the layer in the PyTorch state dict.
        large: Channels of the large feature map.
        small: Channels of the small feature map.
        splits: Partial gradients of the weight.
        bias: Slot of the bias.
    """
    weight = Slot(
        f"{name}.weight",
        (4, 4, large, small),
        splits,
        lambda plain: plain.permute(2, 3, 1, 0),
        lambda stacked: stacked.permute(3, 2, 0, 1),
    )
    return [weight, bias]


def linear_slots(name: str, module: nn.Linear) -> list[Slot]:
    """Return the slots of a linear layer: the weight is transposed to (in, out)."""
    shape = (module.in_features, module.out_features)
    return [
        Slot(f"{name}.weight", shape, 1, _transposed, _transposed),
        Slot(f"{name}.bias", (module.out_features,), 1, _same, _same),
    ]


def padded_linear_slots(name: str, module: nn.Linear, inner: int, outer: int) -> list[Slot]:
    """Return the slots of a linear layer padded with zeros.

    The gradients of the padding are zero, so it stays zero.

    Args:
        name: Name of the layer in the PyTorch state dict.
        module: The layer.
        inner: Padded number of inputs.
        outer: Padded number of outputs.
    """
    rows, columns = module.in_features, module.out_features
    return [
        Slot(
            f"{name}.weight",
            (inner, outer),
            1,
            lambda plain: F.pad(plain.t(), (0, outer - columns, 0, inner - rows)),
            lambda stacked: stacked[:rows, :columns].t(),
        ),
        Slot(
            f"{name}.bias",
            (outer,),
            1,
            lambda plain: F.pad(plain, (0, outer - columns)),
            lambda stacked: stacked[:columns],
        ),
    ]


def linear_to_map_slots(name: str, module: nn.Linear, shape: tuple[int, int, int]) -> list[Slot]:
    """Return the slots of a linear layer whose output is reshaped to a feature map.

    Args:
        name: Name of the layer in the PyTorch state dict.
        module: The layer.
        shape: The map in PyTorch, (channels, height, width); here it is channels-last.
    """
    channels, height, width = shape
    inner = module.in_features
    return [
        Slot(
            f"{name}.weight",
            (inner, height * width * channels),
            1,
            lambda plain: plain.t().unflatten(1, shape).permute(0, 2, 3, 1).reshape(inner, -1),
            lambda stacked: (
                stacked.view(inner, height, width, channels).permute(3, 1, 2, 0).reshape(-1, inner)
            ),
        ),
        Slot(
            f"{name}.bias",
            (height * width * channels,),
            1,
            lambda plain: plain.view(shape).permute(1, 2, 0).reshape(-1),
            lambda stacked: stacked.view(height, width, channels).permute(2, 0, 1).reshape(-1),
        ),
    ]


def map_to_linear_slots(name: str, module: nn.Linear, channels: int) -> list[Slot]:
    """Return the slots of a linear layer whose input is a flattened feature map.

    Args:
        name: Name of the layer in the PyTorch state dict.
        module: The layer.
        channels: Channels of the map: (channels, pixels) in PyTorch, (pixels, channels) here.
    """
    outer = module.out_features
    return [
        Slot(
            f"{name}.weight",
            (module.in_features, outer),
            1,
            lambda plain: plain.t().unflatten(0, (channels, -1)).transpose(0, 1).reshape(-1, outer),
            lambda stacked: (
                stacked.view(-1, channels, outer).transpose(0, 1).reshape(-1, outer).t()
            ),
        ),
        Slot(f"{name}.bias", (outer,), 1, _same, _same),
    ]


def full_map_conv_slots(name: str, module: nn.Conv2d) -> list[Slot]:
    """Return the slots of a convolution whose kernel covers its whole input.

    It is a linear layer: (out, in, size, size) becomes a matrix (size · size · in, out).
    """
    inner, outer, size = module.in_channels, module.out_channels, module.kernel_size[0]
    return [
        Slot(
            f"{name}.weight",
            (size * size * inner, outer),
            1,
            lambda plain: plain.permute(2, 3, 1, 0).reshape(-1, outer),
            lambda stacked: stacked.view(size, size, inner, outer).permute(3, 2, 0, 1),
        ),
        Slot(f"{name}.bias", (outer,), 1, _same, _same),
    ]


def full_map_conv_transpose_slots(name: str, module: nn.ConvTranspose2d) -> list[Slot]:
    """Return the slots of a transposed convolution of a single pixel.

    It is a linear layer: (in, out, size, size) becomes a matrix (in, size · size · out). The bias
    serves every pixel, so the column sums of the matrix are size · size partial sums of it.
    """
    inner, outer, size = module.in_channels, module.out_channels, module.kernel_size[0]
    return [
        Slot(
            f"{name}.weight",
            (inner, size * size * outer),
            1,
            lambda plain: plain.permute(0, 2, 3, 1).reshape(inner, -1),
            lambda stacked: stacked.view(inner, size, size, outer).permute(0, 3, 1, 2),
        ),
        Slot(f"{name}.bias", (outer,), size * size, _same, _same),
    ]


def _same(value: Tensor) -> Tensor:
    return value


def _transposed(value: Tensor) -> Tensor:
    return value.t()
