"""Layers that compute what torch's own do, sooner on a CPU. Names and shapes of their parameters are torch's."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Up(nn.ConvTranspose2d):
    """Transposed convolution 4x4, stride 2, padding 1.

    On a CPU torch sums the bias's gradient over a map in a millisecond; as a product with ones it costs a tenth.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(width_in, width_out, 4, stride=2, padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if x.device.type == "cpu":
            return _Up.apply(x, self.weight, self.bias)
        return super().forward(x, output_size)


class OutputUp(Up):
    """The same onto a picture's few channels.

    On a CPU oneDNN spends seven milliseconds on the forward pass of the paper's last layer and one on its gradient; a
    matrix product and a fold give the same numbers in three.
    """

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if x.device.type == "cpu":
            return _FoldedUp.apply(x, self.weight, self.bias)
        return super().forward(x, output_size)


class MapToVector(nn.Conv2d):
    """Convolution of a whole map into one pixel: a linear layer, at a third of the convolution's cost on a CPU.

    With map and weight in channels-last order the reshapings are views.
    """

    def __init__(self, width_in: int, width_out: int, size: int) -> None:
        super().__init__(width_in, width_out, size)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_pixels_first(x), _pixels_first(self.weight), self.bias)[:, :, None, None]


class VectorToMap(nn.ConvTranspose2d):
    """The mirror image: transposed convolution of one pixel into a map."""

    def __init__(self, width_in: int, width_out: int, size: int) -> None:
        super().__init__(width_in, width_out, size)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        height, width = self.kernel_size
        assert self.bias is not None
        pixels = torch.addmm(
            self.bias.repeat(height * width), x.flatten(1), _pixels_first(self.weight)
        )
        return pixels.view(-1, height, width, self.out_channels).permute(0, 3, 1, 2)


def as_torch(model: nn.Module) -> None:
    """Puts torch's own layers, with the same parameters, in the place of ours: what most people would have written."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, Up | VectorToMap | MapToVector):
                kind = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.ConvTranspose2d
                widths = (layer.in_channels, layer.out_channels)
                plain = kind(*widths, layer.kernel_size, stride=layer.stride, padding=layer.padding)  # type: ignore[arg-type]
                plain.weight, plain.bias = layer.weight, layer.bias
                setattr(parent, name, plain)
            elif isinstance(layer, nn.ReLU):
                layer.inplace = (
                    False  # in place the plain loop is a few per cent slower, in its mixed layouts
                )


def _pixels_first(x: Tensor) -> Tensor:
    """(n, channels, height, width) -> (n, height x width x channels)."""
    return x.permute(0, 2, 3, 1).flatten(1)


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv_transpose2d(x, weight, bias, stride=2, padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        geometry = (None, [2, 2], [1, 1], [1, 1], True, [0, 0], 1, [True, True, False])
        dx, dweight, _ = torch.ops.aten.convolution_backward(gradients[0], x, weight, *geometry)
        pixels = (
            gradients[0].permute(0, 2, 3, 1).reshape(-1, weight.shape[1])
        )  # a view of a channels-last map
        return dx, dweight, pixels.new_ones(len(pixels)) @ pixels


class _FoldedUp(_Up):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        batch, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(
            batch, height * width, channels
        )  # a view of a channels-last map
        taps = weight.flatten(1).t() @ pixels.transpose(1, 2)  # (batch, out channels x 16, pixels)
        folded = F.fold(taps, (2 * height, 2 * width), kernel_size=4, stride=2, padding=1)
        return folded.add_(bias[:, None, None])
