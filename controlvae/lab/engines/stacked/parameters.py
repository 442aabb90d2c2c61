"""The weights of a stack in one buffer, and their gradients where the optimiser reads them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from controlvae.lab.engines.stacked import ops as products

_BLOCK = (
    256  # parameters one program of the optimiser updates; every slot begins at a multiple of it
)


@dataclass
class Slot:
    """One parameter of every model: its place in the buffers, and its layout against the plain module's."""

    name: str  # in the plain module's state dict
    shape: tuple[int, ...]  # of one model's weight, as the kernels want it
    parts: int  # partial gradients that the optimiser sums
    to_stacked: Callable[[Tensor], Tensor]
    to_plain: Callable[[Tensor], Tensor]
    weight: Tensor = field(init=False)  # (models, *shape), once `Parameters` has placed it
    operand: Tensor = field(init=False)  # the same as products take it: in `bf16` a rounded copy
    gradient: Tensor = field(init=False)  # (models, parts, *shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def padded(self) -> int:
        return -(-self.size // _BLOCK) * _BLOCK


class Parameters:
    """All weights of all models, (models, size), with Adam's moments beside them.

    Layers write gradients in parts (one per split of their pixels) and the optimiser sums them as it reads them, so a
    gradient is never summed, concatenated or cleared in a pass of its own. In `bf16` it leaves the weights rounded,
    too: every program of a product would otherwise round them again.
    """

    def __init__(
        self, slots: list[Slot], models: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        size = sum(slot.padded for slot in slots)
        self.weights = torch.zeros(models, size, device=device)
        self.operands = self.weights.to(dtype)  # the same memory where nothing is rounded
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.partials = torch.zeros(
            models, sum(slot.size * slot.parts for slot in slots), device=device
        )
        table: list[
            list[int]
        ] = []  # per block: where its partial gradients begin, how many, how far apart, its size
        at = partial_at = 0
        for slot in slots:
            slot.weight, slot.operand = (
                buffer[:, at : at + slot.size].view(models, *slot.shape)
                for buffer in (self.weights, self.operands)
            )
            ends = partial_at + slot.size * slot.parts
            slot.gradient = self.partials[:, partial_at:ends].view(models, slot.parts, *slot.shape)
            for begin in range(0, slot.size, _BLOCK):
                table.append(
                    [partial_at + begin, slot.parts, slot.size, min(_BLOCK, slot.size - begin)]
                )
            at, partial_at = at + slot.padded, ends
        self.table = torch.tensor(table, dtype=torch.int32, device=device)

    def step(self, counter: Tensor, rate: Tensor, beta1: float, beta2: float) -> None:
        """One Adam step; `counter` is a device number, the steps taken before, and so is the rate, a float32."""
        products.adam(
            self.weights,
            self.first,
            self.second,
            self.operands,
            self.partials,
            self.table,
            counter,
            rate,
            _BLOCK,
            beta1=beta1,
            beta2=beta2,
        )

    def export(self, model: int) -> dict[str, dict[str, Tensor]]:
        """Weights and moments of one model under their plain names and layouts, on the host."""
        return {kind: self._read(buffer, model) for kind, buffer in self.buffers().items()}

    @torch.no_grad()
    def load(self, model: int, values: dict[str, dict[str, Tensor]]) -> None:
        """Takes over what `export` gave, in place: a captured graph goes on reading the same memory."""
        for kind, buffer in self.buffers().items():
            at = 0
            for slot in self.slots:
                if kind in values:
                    stacked = slot.to_stacked(values[kind][slot.name]).reshape(-1)
                    buffer[model, at : at + slot.size].copy_(stacked)
                at += slot.padded
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Makes the operands what the weights are, after these were written by anything but `step`."""
        self.operands.copy_(self.weights)

    def buffers(self) -> dict[str, Tensor]:
        return {"weight": self.weights, "exp_avg": self.first, "exp_avg_sq": self.second}

    def _read(self, buffer: Tensor, model: int) -> dict[str, Tensor]:
        host, at, found = buffer[model].cpu(), 0, {}
        for slot in self.slots:
            found[slot.name] = (
                slot.to_plain(host[at : at + slot.size].view(slot.shape)).contiguous().clone()
            )
            at += slot.padded
        return found
