"""Faster CPU implementations of a model's convolutions, swapped in by `optimise_layers`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from controlvae.lab.models import ConvBatchNormVAE, ConvVAE


def optimise_layers(model: nn.Module) -> None:
    """Replace layers of a convolutional VAE by equivalent ones that are faster on a CPU, in place.

    Parameters, their names and their shapes stay the same, so state dicts are interchangeable.
    Values differ from torch's layers only by rounding. Other models are unchanged.
    """
    if isinstance(model, ConvVAE | ConvBatchNormVAE):
        _optimise_sequence(model.encoder)
        _optimise_sequence(model.decoder)


def _optimise_sequence(layers: nn.Sequential) -> None:
    last = len(layers) - 1
    for number, layer in enumerate(layers):
        if isinstance(layer, nn.Conv2d) and layer.stride == (1, 1):
            layers[number] = MapToVector(layer)
        elif isinstance(layer, nn.ConvTranspose2d) and layer.stride == (1, 1):
            layers[number] = VectorToMap(layer)
        elif isinstance(layer, nn.ConvTranspose2d):
            layers[number] = OutputUpsampling(layer) if number == last else Upsampling(layer)
        elif isinstance(layer, nn.ReLU):
            # In place after a convolution or a batch norm, whose outputs no gradient needs.
            layer.inplace = isinstance(layers[number - 1], nn.Conv2d | nn.BatchNorm2d | Upsampling)


class _Replacement(nn.Module):
    """Layer that takes over the parameters of a convolution."""

    def __init__(self, layer: nn.Conv2d | nn.ConvTranspose2d) -> None:
        super().__init__()
        assert layer.bias is not None
        self.weight, self.bias = layer.weight, layer.bias
        self._forward_hooks = layer._forward_hooks  # such as those of conditioning on the rate


class Upsampling(_Replacement):
    """Transposed convolution 4x4, stride 2, padding 1.

    On a CPU torch takes a millisecond to sum the bias's gradient over a map. A product with ones
    takes a tenth of that.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of twice the height and width, (batch, out channels, 2 height, 2 width)."""
        if x.device.type == "cpu":
            return _Upsample.apply(x, self.weight, self.bias)
        return F.conv_transpose2d(x, self.weight, self.bias, stride=2, padding=1)


class OutputUpsampling(Upsampling):
    """`Upsampling` to an image's few channels.

    On a CPU oneDNN takes seven milliseconds for the forward pass of the paper's last layer and one
    for its gradient. A matrix product and a fold give the same numbers in three.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of twice the height and width, (batch, out channels, 2 height, 2 width)."""
        if x.device.type == "cpu":
            return _FoldedUpsample.apply(x, self.weight, self.bias)
        return F.conv_transpose2d(x, self.weight, self.bias, stride=2, padding=1)


class MapToVector(_Replacement):
    """Convolution of a whole map into one pixel, as a linear layer.

    It costs a third of the convolution on a CPU. With map and weight in channels-last order the
    reshapes are views.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return one pixel per map, (batch, out channels, 1, 1)."""
        return F.linear(_pixels_first(x), _pixels_first(self.weight), self.bias)[:, :, None, None]


class VectorToMap(_Replacement):
    """Transposed convolution of one pixel into a map, as a linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a map per pixel, (batch, out channels, size, size)."""
        _, channels, height, width = self.weight.shape
        bias = self.bias.repeat(height * width)
        pixels = torch.addmm(bias, x.flatten(1), _pixels_first(self.weight))
        return pixels.view(-1, height, width, channels).permute(0, 3, 1, 2)


def _pixels_first(x: Tensor) -> Tensor:
    """Flatten maps with channels last, (n, height x width x channels)."""
    return x.permute(0, 2, 3, 1).flatten(1)


class _Upsample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv_transpose2d(x, weight, bias, stride=2, padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        geometry = (None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1, [True, True, False])
        dx, dweight, _ = torch.ops.aten.convolution_backward(gradients[0], x, weight, *geometry)
        # A view of a channels-last map.
        pixels = gradients[0].permute(0, 2, 3, 1).reshape(-1, weight.shape[1])
        return dx, dweight, pixels.new_ones(len(pixels)) @ pixels


class _FoldedUpsample(_Upsample):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        batch, channels, height, width = x.shape
        # A view of a channels-last map.
        pixels = x.permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        taps = weight.flatten(1).t() @ pixels.transpose(1, 2)  # (batch, out channels x 16, pixels)
        folded = F.fold(taps, (2 * height, 2 * width), kernel_size=4, stride=2, padding=1)
        return folded.add_(bias[:, None, None])
