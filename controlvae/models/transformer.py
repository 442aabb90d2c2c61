"""Transformer blocks, normalised first, whose dropout may be a function that the caller gives."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Drop = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]  # keys and values, (batch, heads, T, width / heads) each


@dataclass(frozen=True)
class Dropout:
    """Dropout at a rate by torch's own generator; or, where a function is `given`, that function of each tensor.

    The function is called at the same places in the same order whenever shapes are alike, so a caller that numbers its
    calls can make every mask a function of (seed, step, place).
    """

    rate: float = 0.0
    given: Drop | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.given is not None:
            return self.given(x)
        return F.dropout(x, self.rate) if self.rate else x

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """softmax(query keyᵀ / √d) value with dropout on the weights; `mask` is true where one may look."""
        if self.given is None:
            return F.scaled_dot_product_attention(query, key, value, mask, self.rate, causal)
        # The fused kernels take no masks of one's own for dropout, so the weights are written out here.
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.given(torch.softmax(scores, -1)) @ value


class Attention(nn.Module):
    """Multi-head attention without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of the heads, got {width} and {heads}")
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def pair(self, memory: Tensor) -> Pair:
        """Keys and values of what is looked at."""
        return self._split(self.key(memory)), self._split(self.value(memory))

    def forward(self, x: Tensor, pair: Pair, drop: Dropout, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        seen = drop.attend(self._split(self.query(x)), *pair, mask, causal)
        return self.output(seen.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(batch, T, width) -> (batch, heads, T, width / heads)"""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention to itself, to a memory where there is one, and a rectified layer; each normalises what it reads."""

    def __init__(self, width: int, heads: int, inner: int, memory: bool) -> None:
        super().__init__()
        self.own_norm, self.own = nn.LayerNorm(width), Attention(width, heads)
        if memory:
            self.memory_norm, self.memory = nn.LayerNorm(width), Attention(width, heads)
        self.inner_norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(
        self, x: Tensor, drop: Dropout, memory: Tensor | None = None, past: Pair | None = None,
        mask: Tensor | None = None, causal: bool = False,
    ) -> tuple[Tensor, Pair]:  # fmt: skip
        """The block's output, (batch, T, width), and the keys and values so far. With a `past`, T must be 1."""
        read = self.own_norm(x)
        pair = self.own.pair(read)
        if past is not None:
            pair = torch.cat([past[0], pair[0]], 2), torch.cat([past[1], pair[1]], 2)
        x = x + drop(self.own(read, pair, drop, mask, causal))
        if memory is not None:
            x = x + drop(self.memory(self.memory_norm(x), self.memory.pair(memory), drop))
        return x + drop(self.outer(drop(torch.relu(self.inner(self.inner_norm(x)))))), pair


def sinusoids(positions: int, width: int) -> Tensor:
    """Places as sines, then cosines, of wavelengths from 2π to 20,000π: (positions, width).

    As in tensor2tensor and texar; Vaswani et al. 2017 write them interleaved.
    """
    if width % 2 or width < 4:
        raise ValueError(f"width must be even and 4 or more, got {width}")
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / (half - 1)))
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()
