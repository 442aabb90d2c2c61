"""The few operations a law needs, once for Python floats and once for tensors.

A law is written a single time against this interface; that is how a plain CPU loop pays about three
microseconds a step, a captured graph pays no host synchronisation, and both compute the same thing.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

# A named tuple of floats or of tensors, and a number of either kind. Laws never look inside a value, so
# naming the two kinds in every signature would add noise and no safety.
Value = Any
Record = Any


class Backend(Protocol):
    """What a law may do with a value besides `+ - * /`, comparisons and `& |`."""

    def sigmoid(self, x: Value, /) -> Value: ...
    def exp(self, x: Value, /) -> Value: ...
    def floor(self, x: Value, /) -> Value: ...
    def clip(self, x: Value, low: float, high: float) -> Value: ...
    def where(self, condition: Value, yes: Value, no: Value) -> Value: ...
    def choose(self, condition: Value, yes: Record, no: Record) -> Record: ...


class Floats:
    """Python floats: no tensor is made."""

    @staticmethod
    def sigmoid(x: float) -> float:
        # Two branches, so that exp never sees a large positive number (a set point of 800 must not overflow).
        if x >= 0:
            return 1.0 / (1.0 + math.exp(-x))
        grown = math.exp(x)
        return grown / (1.0 + grown)

    floor = staticmethod(math.floor)
    exp = staticmethod(math.exp)

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
    """Tensors of one shape: branches are `where`, so nothing waits for the device."""

    sigmoid = staticmethod(torch.sigmoid)
    floor = staticmethod(torch.floor)
    exp = staticmethod(torch.exp)

    @staticmethod
    def clip(x: Tensor, low: float, high: float) -> Tensor:
        return torch.clamp(x, low, high)

    @staticmethod
    def where(condition: Tensor, yes: Value, no: Value) -> Tensor:
        return torch.where(condition, yes, no)

    @staticmethod
    def choose(condition: Tensor, yes: Record, no: Record) -> Record:
        """One selection over the whole record, where a small kernel for each field would cost more than the law itself.

        A compiler fuses them, and would be held up by the stacking.
        """
        if torch.compiler.is_compiling():
            return type(no)(*(torch.where(condition, y, n) for y, n in zip(yes, no, strict=True)))
        return type(no)(*torch.where(condition, torch.stack(yes), torch.stack(no)).unbind(0))


def widest_float(device: torch.device) -> torch.dtype:
    """float64, or float32 on Apple's MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Tensors made within may be written to later, even where they are first needed under `torch.inference_mode`."""
    if torch.compiler.is_compiling():  # a compiler cannot trace the question
        return nullcontext()
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


FLOATS: Backend = Floats()
TENSORS: Backend = Tensors()
