"""A layer that computes what torch's own does, sooner."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OutputUp(nn.ConvTranspose2d):
    """Transposed convolution 4x4, stride 2, padding 1, onto a picture's few channels.

    On a CPU oneDNN spends seven milliseconds on the forward pass of the paper's last layer and one on its gradient; a
    matrix product and a fold give the same numbers in three.
    """

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(width_in, width_out, 4, stride=2, padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if x.device.type == "cpu":
            return _FoldedUp.apply(x, self.weight, self.bias)
        return super().forward(x, output_size)


class _FoldedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        batch, channels, height, width = x.shape
        pixels = x.permute(0, 2, 3, 1).reshape(batch, height * width, channels)  # a view of a channels-last map
        taps = weight.flatten(1).t() @ pixels.transpose(1, 2)  # (batch, out channels x 16, pixels)
        folded = F.fold(taps, (2 * height, 2 * width), kernel_size=4, stride=2, padding=1)
        return folded.add_(bias[:, None, None])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        geometry = ([weight.shape[1]], [2, 2], [1, 1], [1, 1], True, [0, 0], 1, [True, True, True])
        return torch.ops.aten.convolution_backward(gradients[0], x, weight, *geometry)
