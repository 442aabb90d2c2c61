"""Array operations that a law needs, for Python floats and for tensors.

Each law is written once against the `Backend` interface. With floats, a step of a CPU loop costs
one to eight microseconds. With tensors, nothing synchronises with the host, so a captured graph can
contain the step. Both compute the same thing.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

# A number, either a float or a tensor, and a named tuple of such numbers. Laws never look inside a
# value, so spelling out the two kinds in every signature would add noise and no safety.
Value = Any
Record = Any


class Backend(Protocol):
    """Operations on values, next to `+ - * /`, comparisons and `& |`."""

    def sigmoid(self, x: Value, /) -> Value: ...
    def exp(self, x: Value, /) -> Value: ...
    def log(self, x: Value, /) -> Value: ...
    def floor(self, x: Value, /) -> Value: ...
    def clip(self, x: Value, low: float, high: float) -> Value: ...
    def where(self, condition: Value, yes: Value, no: Value) -> Value: ...
    def choose(self, condition: Value, yes: Record, no: Record) -> Record: ...


class Floats:
    """Backend for Python floats. It creates no tensors."""

    @staticmethod
    def sigmoid(x: float) -> float:
        # Two branches, so that exp never receives a large positive number: a set point of 800 nats
        # would overflow.
        if x >= 0:
            return 1.0 / (1.0 + math.exp(-x))
        exponential = math.exp(x)
        return exponential / (1.0 + exponential)

    floor = staticmethod(math.floor)
    exp = staticmethod(math.exp)
    log = staticmethod(math.log)

    @staticmethod
    def clip(x: float, low: float, high: float) -> float:
        return low if x < low else high if x > high else x

    @staticmethod
    def where(condition: bool, yes: float, no: float) -> float:
        return yes if condition else no

    @staticmethod
    def choose(condition: bool, yes: Record, no: Record) -> Record:
        return yes if condition else no


class Tensors:
    """Backend for tensors of one shape. Branches are `torch.where`, so the host never waits."""

    sigmoid = staticmethod(torch.sigmoid)
    floor = staticmethod(torch.floor)
    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)

    @staticmethod
    def clip(x: Tensor, low: float, high: float) -> Tensor:
        return torch.clamp(x, low, high)

    @staticmethod
    def where(condition: Tensor, yes: Value, no: Value) -> Tensor:
        return torch.where(condition, yes, no)

    @staticmethod
    def choose(condition: Tensor, yes: Record, no: Record) -> Record:
        """Select one of two records with a single `where` over the stacked fields.

        One small kernel per field would cost more than the law itself. A compiler fuses those
        kernels, and the stacking would hinder it.

        Args:
            condition: Boolean tensor.
            yes: Record to return where the condition holds.
            no: Record to return elsewhere.
        """
        if torch.compiler.is_compiling():
            return type(no)(*(torch.where(condition, y, n) for y, n in zip(yes, no, strict=True)))
        return type(no)(*torch.where(condition, torch.stack(yes), torch.stack(no)).unbind(0))


def larger(first: Value, second: Value, xp: Backend) -> Value:
    """Return the larger of two values."""
    return xp.where(first > second, first, second)


def smaller(first: Value, second: Value, xp: Backend) -> Value:
    """Return the smaller of two values."""
    return xp.where(first < second, first, second)


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on Apple's MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Return a context in which new tensors are normal tensors, also in `torch.inference_mode`.

    Tensors created in inference mode could not be written in place later.
    """
    if torch.compiler.is_compiling():  # a compiler cannot trace the query
        return nullcontext()
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


FLOATS: Backend = Floats()
TENSORS: Backend = Tensors()
