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

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """softmax(query keyᵀ / √d + bias) value with dropout on the weights; all (batch, heads, T, width / heads)."""
        if self.given is None:
            return F.scaled_dot_product_attention(query, key, value, bias, self.rate)
        # The fused kernels take no masks of one's own for dropout, so the weights are written out here.
        bias = (
            query.new_zeros(1)
            if bias is None
            else bias.expand(*query.shape[:2], -1, -1).flatten(0, 1)
        )
        query, key, flat = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
        weights = torch.softmax(
            torch.baddbmm(bias, query, key.mT, alpha=query.shape[-1] ** -0.5), -1
        )
        return torch.bmm(self.given(weights), flat).view(value.shape)


class Attention(nn.Module):
    """Multi-head attention of a row to itself, without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of the heads, got {width} and {heads}")
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(
        self, x: Tensor, drop: Dropout, bias: Tensor | None, past: Pair | None = None
    ) -> tuple[Tensor, Pair]:
        """What each place sees, (batch, T, width), and the keys and values so far."""
        weight = torch.cat(
            [self.query.weight, self.key.weight, self.value.weight]
        )  # one product for the three
        split = F.linear(x, weight).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.contiguous().unbind()
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        return self._join(drop.attend(query, key, value, bias)), (key, value)

    def _join(self, seen: Tensor) -> Tensor:
        """(batch, heads, T, width / heads) -> (batch, T, width)"""
        return self.output(seen.transpose(1, 2).flatten(2))


class Recall(Attention):
    """Attention to a memory of one token: its weight is 1 whatever is asked, so nothing is.

    The queries and keys are kept, as the released network has them. Their gradient is zero, so they never move.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.query.requires_grad_(False)
        self.key.requires_grad_(False)

    def forward(self, memory: Tensor, places: int, drop: Dropout) -> Tensor:  # type: ignore[override]
        """memory: (batch, 1, width); returns (batch, places, width)."""
        value = self.value(memory).unflatten(2, (self.heads, -1)).transpose(1, 2)
        weights = drop(memory.new_ones(len(memory), self.heads, places, 1))
        return self._join(weights * value)


class Block(nn.Module):
    """Attention to itself, to a memory where there is one, and a rectified layer; each normalises what it reads."""

    def __init__(self, width: int, heads: int, inner: int, memory: bool) -> None:
        super().__init__()
        self.own_norm, self.own = nn.LayerNorm(width), Attention(width, heads)
        if memory:
            # The norm is of the queries, and as idle as they are.
            self.memory_norm, self.memory = (
                nn.LayerNorm(width).requires_grad_(False),
                Recall(width, heads),
            )
        self.inner_norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(
        self,
        x: Tensor,
        drop: Dropout,
        memory: Tensor | None = None,
        past: Pair | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Pair]:
        """The block's output, (batch, T, width), and the keys and values so far. With a `past`, T must be 1."""
        seen, pair = self.own(self.own_norm(x), drop, bias, past)
        x = x + drop(seen)
        if memory is not None:
            x = x + drop(self.memory(memory, x.shape[1], drop))
        return x + drop(self.outer(drop(torch.relu(self.inner(self.inner_norm(x)))))), pair


def looking_back(places: int, device: torch.device) -> Tensor:
    """The bias of scores by which no place sees a later one: (places, places)."""
    return torch.full((places, places), -math.inf, device=device).triu(1)


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
