"""Parameter buffers of a stack of models, with partial gradients and Adam moments."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from controlvae.lab.engines.stacked import ops

# Parameters that one program of the optimiser updates. Every slot begins at a multiple of it.
_BLOCK = 256


@dataclass
class Slot:
    """One parameter of every model: its place in the buffers and its layout.

    Attributes:
        name: Name in the PyTorch state dict.
        shape: Shape of one model's weight, as the kernels read it.
        splits: Partial gradients that the optimiser sums.
        to_stacked: Converts PyTorch's layout to `shape`.
        to_plain: Converts `shape` to PyTorch's layout.
        weight: (models, *shape), assigned by `Parameters`.
        operand: Weight as the matrix products read it: in `bf16` a rounded copy.
        gradient: Partial gradients, (models, splits, *shape).
    """

    name: str
    shape: tuple[int, ...]
    splits: int
    to_stacked: Callable[[Tensor], Tensor]
    to_plain: Callable[[Tensor], Tensor]
    weight: Tensor = field(init=False)
    operand: Tensor = field(init=False)
    gradient: Tensor = field(init=False)

    @property
    def size(self) -> int:
        """Number of parameters of one model."""
        return math.prod(self.shape)

    @property
    def padded_size(self) -> int:
        """Size rounded up to whole blocks."""
        return -(-self.size // _BLOCK) * _BLOCK


class Parameters:
    """All weights of all models, (models, size), and their Adam moments.

    Layers write partial gradients, one per split of their pixels, and the optimiser sums them as it
    reads them. So a gradient is never summed, concatenated or zeroed in a separate pass. In `bf16`
    the optimiser also stores the rounded weights; otherwise every program of a matrix
    product would round them again.

    Args:
        slots: Parameters in the order of the buffers; their tensors are assigned here.
        models: Number of models.
        dtype: Data type of the operands.
        device: Device of the buffers.
    """

    def __init__(
        self, slots: list[Slot], models: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slots = slots
        size = sum(slot.padded_size for slot in slots)
        partials_size = sum(slot.size * slot.splits for slot in slots)
        self.weights = torch.zeros(models, size, device=device)
        self.operands = self.weights.to(dtype)  # the same memory if nothing is rounded
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.partials = torch.zeros(models, partials_size, device=device)
        # Per block: offset, number and stride of its partial gradients, and parameters in use.
        table: list[list[int]] = []
        start = partials_start = 0
        for slot in slots:
            slot.weight, slot.operand = (
                buffer[:, start : start + slot.size].view(models, *slot.shape)
                for buffer in (self.weights, self.operands)
            )
            end = partials_start + slot.size * slot.splits
            partials = self.partials[:, partials_start:end]
            slot.gradient = partials.view(models, slot.splits, *slot.shape)
            for begin in range(0, slot.size, _BLOCK):
                used = min(_BLOCK, slot.size - begin)
                table.append([partials_start + begin, slot.splits, slot.size, used])
            start, partials_start = start + slot.padded_size, end
        self.table = torch.tensor(table, dtype=torch.int32, device=device)

    def step(self, counter: Tensor, rate: Tensor, beta1: float, beta2: float) -> None:
        """Apply one Adam step.

        Args:
            counter: Steps taken before this one, a number on the device.
            rate: Learning rate, a float32 number on the device.
            beta1: Decay of the first moments.
            beta2: Decay of the second moments.
        """
        ops.adam_step(
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
        """Return weights and moments of one model in PyTorch's names and layouts, on the host."""
        return {kind: self._read(buffer, model) for kind, buffer in self.buffers().items()}

    @torch.no_grad()
    def load(self, model: int, values: dict[str, dict[str, Tensor]]) -> None:
        """Copy what `export` returned into the buffers.

        The copy is in place, so a captured graph keeps reading the same memory.
        """
        for kind, buffer in self.buffers().items():
            start = 0
            for slot in self.slots:
                if kind in values:
                    stacked = slot.to_stacked(values[kind][slot.name]).reshape(-1)
                    buffer[model, start : start + slot.size].copy_(stacked)
                start += slot.padded_size
        self.update_operands()

    @torch.no_grad()
    def update_operands(self) -> None:
        """Round the weights into the operands after anything but `step` has written them."""
        self.operands.copy_(self.weights)

    def buffers(self) -> dict[str, Tensor]:
        """Return weights and moments under Adam's names."""
        return {"weight": self.weights, "exp_avg": self.first, "exp_avg_sq": self.second}

    def _read(self, buffer: Tensor, model: int) -> dict[str, Tensor]:
        host, start, values = buffer[model].cpu(), 0, {}
        for slot in self.slots:
            stacked = host[start : start + slot.size].view(slot.shape)
            values[slot.name] = slot.to_plain(stacked).contiguous().clone()
            start += slot.padded_size
        return values
