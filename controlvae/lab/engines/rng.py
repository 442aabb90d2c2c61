"""Random numbers as a function of (seed, step): nothing to save, and a model draws the same alone or beside others."""

import math

import torch
from torch import Tensor

from controlvae.lab.data.dataset import stream_key

_LOW = 0xFFFFFFFF


def noise_key(seed: int) -> int:
    """The key of a seed's noise. Odd, as the generator asks for, and well mixed."""
    return stream_key(seed, 0x6E6F697365) | 1


def normal_noise(keys: Tensor, steps: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal noise of one model and step for each pair of entries of `keys` and `steps`.

    The counter-based generator of Widynski (*Squares: A Fast Counter-Based RNG*, 2020): four rounds of squaring on
    64-bit words, here in plain tensor operations, so that a captured graph may hold it and every device draws the same
    integers.

    Args:
        keys: int64, any shape; steps: int64, broadcastable against it.
        shape: of the noise wanted for each pair.

    Returns: float32, (*broadcast shape, *shape).
    """
    count = math.prod(shape)
    within = torch.arange(count, dtype=torch.int64, device=keys.device)
    key = keys.unsqueeze(-1)
    word = (steps.unsqueeze(-1) * count + within) * key
    first, second = word, word + key
    for offset in (first, second, first):
        word = word * word + offset
        word = (word << 32) | ((word >> 32) & _LOW)
    word = ((word * word + second) >> 32) & _LOW
    # 23 bits and a half: exactly representable in float32 and never 0 or 1, so that erfinv stays finite.
    uniform = ((word >> 9).float() + 0.5) * 2.0**-22 - 1.0
    return (math.sqrt(2.0) * torch.erfinv(uniform)).view(*word.shape[:-1], *shape)
