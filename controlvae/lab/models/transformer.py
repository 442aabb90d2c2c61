"""Pre-norm Transformer blocks whose dropout can be replaced by the caller's function."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DropoutFunction = Callable[[Tensor], Tensor]
KeyValue = tuple[Tensor, Tensor]  # keys and values, each (batch, heads, T, width / heads)


@dataclass(frozen=True)
class Dropout:
    """Dropout by torch's generator, or by a custom function of each tensor.

    The function is called at the same places in the same order for equal shapes. A caller that
    counts the calls can make every mask a function of (seed, step, place).

    Attributes:
        rate: Share of values that become zero, for torch's generator.
        function: Replacement for torch's dropout, or None.
    """

    rate: float = 0.0
    function: DropoutFunction | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return `x` with dropout."""
        if self.function is not None:
            return self.function(x)
        return F.dropout(x, self.rate) if self.rate else x

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return softmax(query keyᵀ / √d + bias) value, with dropout on the attention weights.

        Args:
            query: Queries, (batch, heads, T, width / heads).
            key: Keys of the same shape.
            value: Values of the same shape.
            bias: Added to the scores, broadcastable to (batch, heads, T, T), or None.
        """
        if self.function is None:
            return F.scaled_dot_product_attention(query, key, value, bias, self.rate)
        # The fused kernels accept no custom dropout masks, so the weights are computed here.
        if bias is None:
            bias = query.new_zeros(1)
        else:
            bias = bias.expand(*query.shape[:2], -1, -1).flatten(0, 1)
        query, key, flat = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        scores = torch.baddbmm(bias, query, key.mT, alpha=query.shape[-1] ** -0.5)
        weights = self.function(torch.softmax(scores, -1))
        return torch.bmm(weights, flat).view(value.shape)


class Attention(nn.Module):
    """Multi-head self-attention without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(
        self, x: Tensor, dropout: Dropout, bias: Tensor | None, past: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """Return the attended values, (batch, T, width), and all keys and values so far.

        Args:
            x: Inputs, (batch, T, width).
            dropout: Dropout on the attention weights.
            bias: Added to the scores, or None.
            past: Keys and values of earlier tokens, or None.
        """
        # One product for the three projections.
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        split = F.linear(x, weight).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.contiguous().unbind()
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        return self._merge_heads(dropout.attend(query, key, value, bias)), (key, value)

    def _merge_heads(self, attended: Tensor) -> Tensor:
        """Join the heads, (batch, heads, T, width / heads), and project to (batch, T, width)."""
        return self.output(attended.transpose(1, 2).flatten(2))


class MemoryAttention(Attention):
    """Attention to a memory of one token, whose weight is 1 for every query.

    Queries and keys therefore have no effect and no gradient. They exist because the released
    network has them.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.query.requires_grad_(False)
        self.key.requires_grad_(False)

    def forward(self, memory: Tensor, length: int, dropout: Dropout) -> Tensor:  # type: ignore[override]
        """Return the memory's value at every place, (batch, length, width).

        Args:
            memory: One token per row, (batch, 1, width).
            length: Number of places.
            dropout: Dropout on the attention weights.
        """
        value = self.value(memory).unflatten(2, (self.heads, -1)).transpose(1, 2)
        weights = dropout(memory.new_ones(memory.shape[0], self.heads, length, 1))
        return self._merge_heads(weights * value)


class Block(nn.Module):
    """Pre-norm block: self-attention, optional attention to a memory, and a ReLU layer.

    Args:
        width: Size of a token.
        heads: Number of attention heads.
        inner: Width of the ReLU layer.
        memory: Whether the block attends to a memory.
    """

    def __init__(self, width: int, heads: int, inner: int, memory: bool) -> None:
        super().__init__()
        self.own_norm, self.own = nn.LayerNorm(width), Attention(width, heads)
        if memory:
            # This norm is applied to the queries, which have no effect.
            self.memory_norm = nn.LayerNorm(width).requires_grad_(False)
            self.memory = MemoryAttention(width, heads)
        self.inner_norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(
        self,
        x: Tensor,
        dropout: Dropout,
        memory: Tensor | None = None,
        past: KeyValue | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """Return the block's output, (batch, T, width), and all keys and values so far.

        Args:
            x: Inputs, (batch, T, width).
            dropout: Dropout of all layers.
            memory: One token per row, (batch, 1, width), or None.
            past: Keys and values of earlier tokens, or None. With a past, T must be 1.
            bias: Added to the attention scores, or None.
        """
        attended, key_value = self.own(self.own_norm(x), dropout, bias, past)
        x = x + dropout(attended)
        if memory is not None:
            x = x + dropout(self.memory(memory, x.shape[1], dropout))
        hidden = dropout(torch.relu(self.inner(self.inner_norm(x))))
        return x + dropout(self.outer(hidden)), key_value


def causal_bias(length: int, device: torch.device) -> Tensor:
    """Return attention biases that hide later places: -inf above the diagonal, else 0."""
    return torch.full((length, length), -math.inf, device=device).triu(1)


def sinusoidal_positions(positions: int, width: int) -> Tensor:
    """Return position codes: sines, then cosines, of wavelengths 2π to 20,000π.

    This order is that of tensor2tensor and texar. Vaswani et al. 2017 interleave them.

    Returns:
        float32, (positions, width).
    """
    if width % 2 or width < 4:
        raise ValueError(f"width must be even and at least 4, got {width}")
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / (half - 1)))
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()
