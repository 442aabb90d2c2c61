"""Stacks of independent networks: layers whose parameters have a leading axis of runs.

A stack holds R = laws x seeds runs, ordered by law and then by seed. All runs of one seed start
from the same parameters and get the same batches and the same noise, whatever their law.
"""

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Stack:
    """Random numbers and parameters of a stack of runs.

    Args:
        seeds: Seeds of the runs of one law.
        laws: Number of laws. The stack has `laws * len(seeds)` runs.
    """

    def __init__(self, seeds: Sequence[int], laws: int) -> None:
        self.laws, self.seeds = laws, len(seeds)
        self.runs = laws * len(seeds)
        self.parameters: list[Tensor] = []
        # Separate streams: a plant that draws more noise still sees the same batches.
        self._batches = [torch.Generator().manual_seed(1_000_003 * seed) for seed in seeds]
        self._noise = [torch.Generator().manual_seed(1_000_003 * seed + 1) for seed in seeds]
        self._initial = [torch.Generator().manual_seed(1_000_003 * seed + 2) for seed in seeds]

    def expand(self, values: Tensor) -> Tensor:
        """Repeat values of every seed, (seeds, ...), for every law: (runs, ...)."""
        return values.repeat(self.laws, *[1] * (values.dim() - 1))

    def batch(self, *arrays: Tensor, size: int, low: int = 0, high: int | None = None) -> list:
        """Draw the same random rows of several arrays.

        Args:
            arrays: Arrays with equal first axes.
            size: Rows per run.
            low: First row that may be drawn.
            high: End of the rows that may be drawn; default all.

        Returns:
            One tensor (runs, size, ...) per array.
        """
        high = len(arrays[0]) if high is None else high
        rows = torch.stack(
            [torch.randint(low, high, (size,), generator=each) for each in self._batches]
        )
        return [self.expand(array[rows]) for array in arrays]

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal noise, (runs, *shape)."""
        return self.expand(
            torch.stack([torch.randn(shape, generator=each) for each in self._noise])
        )

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform noise in [0, 1), (runs, *shape)."""
        return self.expand(torch.stack([torch.rand(shape, generator=each) for each in self._noise]))

    def gumbel(self, *shape: int) -> Tensor:
        """Draw Gumbel noise, (runs, *shape)."""
        return -(-self.uniform(*shape).clamp(1e-20, 1 - 1e-7).log()).log()

    def parameter(self, *shape: int, scale: float, shift: float = 0.0) -> Tensor:
        """Create a trained parameter, (runs, *shape), from scaled normal noise.

        Args:
            shape: Shape for one run.
            scale: Standard deviation.
            shift: Mean.
        """
        drawn = [torch.randn(shape, generator=each) for each in self._initial]
        values = self.expand(torch.stack(drawn) * scale + shift).contiguous().requires_grad_()
        self.parameters.append(values)
        return values

    def constant(self, *shape: int, scale: float) -> Tensor:
        """Create scaled normal noise that is not trained, (runs, *shape).

        Args:
            shape: Shape for one run.
            scale: Standard deviation.
        """
        drawn = [torch.randn(shape, generator=each) for each in self._initial]
        return self.expand(torch.stack(drawn) * scale)


class Linear:
    """Stack of linear layers: (runs, rows, inputs) to (runs, rows, outputs).

    Args:
        stack: Stack of runs.
        inputs: Input width.
        outputs: Output width.
        gain: Factor of the initial scale, the inverse square root of `inputs`.
        bias: Initial bias.
    """

    def __init__(
        self, stack: Stack, inputs: int, outputs: int, gain: float = 1.0, bias: float = 0.0
    ) -> None:
        self.weight = stack.parameter(inputs, outputs, scale=gain / inputs**0.5)
        self.bias = stack.parameter(1, outputs, scale=0.0, shift=bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)

    def frozen(self, x: Tensor) -> Tensor:
        """Apply the layer without a gradient of its parameters."""
        return torch.baddbmm(self.bias.detach(), x, self.weight.detach())


class MLP:
    """Stack of perceptrons with tanh units between their linear layers.

    Args:
        stack: Stack of runs.
        widths: Widths of input, hidden layers and output.
        gain: Factor of the initial scale of the last layer.
        bias: Initial bias of the last layer.
    """

    def __init__(self, stack: Stack, *widths: int, gain: float = 1.0, bias: float = 0.0) -> None:
        pairs = list(itertools.pairwise(widths))
        hidden = [Linear(stack, *pair) for pair in pairs[:-1]]
        self.layers = [*hidden, Linear(stack, *pairs[-1], gain=gain, bias=bias)]

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).tanh()
        return self.layers[-1](x)

    def frozen(self, x: Tensor) -> Tensor:
        """Apply the network without a gradient of its parameters."""
        for layer in self.layers[:-1]:
            x = layer.frozen(x).tanh()
        return self.layers[-1].frozen(x)


class GRUCell:
    """Stack of gated recurrent units.

    Args:
        stack: Stack of runs.
        inputs: Input width.
        width: Width of the hidden state.
    """

    def __init__(self, stack: Stack, inputs: int, width: int) -> None:
        self.width = width
        self.input, self.hidden = Linear(stack, inputs, 3 * width), Linear(stack, width, 3 * width)

    def __call__(self, x: Tensor, state: Tensor) -> Tensor:
        w = self.width
        a, b = self.input(x), self.hidden(state)
        reset, update = (a[..., : 2 * w] + b[..., : 2 * w]).sigmoid().chunk(2, -1)
        new = (a[..., 2 * w :] + reset * b[..., 2 * w :]).tanh()
        return new + update * (state - new)


class Embedding:
    """Stack of embedding tables.

    Args:
        stack: Stack of runs.
        words: Number of words.
        width: Width of a word vector.
    """

    def __init__(self, stack: Stack, words: int, width: int) -> None:
        self.table = stack.parameter(words, width, scale=0.3)
        self.offsets = torch.arange(stack.runs).view(-1, 1, 1) * words

    def __call__(self, words: Tensor) -> Tensor:
        """Look up words, (runs, batch, length), as vectors, (runs, batch, length, width)."""
        return F.embedding(words + self.offsets, self.table.flatten(0, 1))


class Conv:
    """Stack of convolutions on (batch, runs * channels, height, width), one group per run.

    Args:
        stack: Stack of runs.
        inputs: Input channels of a run.
        outputs: Output channels of a run.
        kernel: Side of the kernel.
        stride: Step of the kernel.
        transposed: Transpose the convolution, which enlarges images.
    """

    def __init__(
        self,
        stack: Stack,
        inputs: int,
        outputs: int,
        kernel: int = 4,
        stride: int = 2,
        transposed: bool = False,
    ) -> None:
        self.runs, self.stride, self.transposed = stack.runs, stride, transposed
        self.padding = (kernel - stride + 1) // 2
        fan_in = inputs * kernel**2 / (stride**2 if transposed else 1)
        sides = (inputs, outputs) if transposed else (outputs, inputs)
        self.weight = stack.parameter(*sides, kernel, kernel, scale=fan_in**-0.5)
        self.bias = stack.parameter(outputs, scale=0.0)

    def __call__(self, x: Tensor) -> Tensor:
        convolve = F.conv_transpose2d if self.transposed else F.conv2d
        weight, bias = self.weight.flatten(0, 1), self.bias.flatten()
        return convolve(x, weight, bias, stride=self.stride, padding=self.padding, groups=self.runs)


def to_channels(x: Tensor) -> Tensor:
    """Move runs into the channels of images: (runs, batch, C, H, W) to (batch, runs * C, H, W)."""
    return x.transpose(0, 1).flatten(1, 2)


def from_channels(x: Tensor, runs: int) -> Tensor:
    """Move runs out of the channels: (batch, runs * C, H, W) to (runs, batch, C, H, W)."""
    return x.unflatten(1, (runs, -1)).transpose(0, 1)


def patchify(x: Tensor, size: int = 2) -> Tensor:
    """Join the pixels of square patches: (runs, batch, H, W, C) to (..., H/size, W/size, C')."""
    runs, batch, height, width, channels = x.shape
    x = x.view(runs, batch, height // size, size, width // size, size, channels)
    return x.transpose(3, 4).reshape(runs, batch, height // size, width // size, -1)


def unpatchify(x: Tensor, size: int = 2) -> Tensor:
    """Split channels into the pixels of square patches, the inverse of `patchify`."""
    runs, batch, height, width, channels = x.shape
    x = x.view(runs, batch, height, width, size, size, channels // size**2)
    return x.transpose(3, 4).reshape(runs, batch, height * size, width * size, -1)


class PixelLinear:
    """Stack of 1x1 convolutions on (runs, batch, H, W, channels).

    After `patchify` it is a convolution whose stride equals its kernel.

    Args:
        stack: Stack of runs.
        inputs: Input channels.
        outputs: Output channels.
        gain: Factor of the initial scale.
    """

    def __init__(self, stack: Stack, inputs: int, outputs: int, gain: float = 1.0) -> None:
        self.linear = Linear(stack, inputs, outputs, gain)

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1, 3)).unflatten(1, x.shape[1:4])
