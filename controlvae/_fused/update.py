"""Fused update of a controller: when it applies, its tables on the device, and its launch."""

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae._cuda_graph import GraphKey, is_concrete
from controlvae._fused.kernel import has_triton, is_interpreted, load_kernel
from controlvae._fused.program import LawKind, group_by_structure
from controlvae._fused.source import table_columns, write_source
from controlvae._monitor.rows import BlockRows
from controlvae._state_layout import StateLayout
from controlvae.laws.backend import outside_inference_mode

ENABLED = True  # benchmarks compare with the update by torch operations
_DEVICE_TYPES = {"cuda"}
_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_logger = logging.getLogger(__name__)


class _Kernel(NamedTuple):
    """Kernel, and the tensors on the device that it reads."""

    device: torch.device
    function: Any
    table: Tensor  # (constants, models), or (constants, 1) for equal laws
    kinds: Tensor | None  # index of the kind of law of each model, None if there is one kind


class FusedUpdate:
    """Update of the laws and of the monitor by one kernel.

    Kernels are built by the first step on a device. A step that a user captures as a CUDA graph
    can launch only a kernel that an earlier step has loaded.

    Args:
        layout: Layout of the states of the laws.
        rows: Rows of the state block.
    """

    def __init__(self, layout: StateLayout, rows: BlockRows) -> None:
        self._layout, self._rows = layout, rows
        self._kernel: _Kernel | None = None
        self._loaded: set[tuple[Any, ...]] = set()
        self._failed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedUpdate, (self._layout, self._rows)  # a copy builds its own kernel

    def advance(
        self, block: Tensor, measured: Tensor, dtype: torch.dtype, key: GraphKey
    ) -> Tensor | None:
        """Update the block in place and return the weight, or None if no kernel can do it.

        Args:
            block: State block.
            measured: Measurement on the same device.
            dtype: dtype of the weight.
            key: Options of the update.
        """
        if self._failed:
            return None
        accumulates, delayed = key.accumulate > 1, key.delayed
        variant = (block.device, measured.dtype, dtype, accumulates, delayed)
        if variant in self._loaded:
            return self._launch(block, measured, dtype, key)
        if block.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # compiling and copying tables are no part of a graph
        try:
            weight = self._launch(block, measured, dtype, key)
        except Exception as error:  # a machine without a C compiler, an unwritable cache, ...
            _logger.warning("no fused updates, as Triton failed: %r", error)
            self._failed = True
            return None
        self._loaded.add(variant)
        return weight

    def _launch(self, block: Tensor, measured: Tensor, dtype: torch.dtype, key: GraphKey) -> Tensor:
        kernel = self._kernel
        if kernel is None or kernel.device != block.device:
            kernel = self._kernel = self._build(block.device)
        weight = torch.empty_like(measured, dtype=dtype, memory_format=torch.contiguous_format)
        table, models = kernel.table, measured.numel()
        arguments = (
            block,
            table,
            measured.contiguous(),
            weight,
            kernel.kinds,
            models,
            table.shape[1],
            0 if table.shape[1] == 1 else 1,
            key.accumulate,
            int(key.last),
            key.accumulate > 1,
            key.delayed,
        )
        launch = kernel.function[(models,)]
        # A product and a sum are rounded one after the other, as on the host.
        if block.is_cuda and block.device.index != torch.cuda.current_device():
            with torch.cuda.device(block.device):
                launch(*arguments, num_warps=1, enable_fp_fusion=False)
        else:
            launch(*arguments, num_warps=1, enable_fp_fusion=False)
        torch.autograd.graph.increment_version(block)  # autograd did not see the write
        return weight

    def _build(self, device: torch.device) -> _Kernel:
        kinds = group_by_structure(self._layout, self._rows)
        source = write_source(kinds, self._rows.pending.start, interpreted=is_interpreted())
        with outside_inference_mode():
            table = make_table(kinds).to(device)
            indices = None if len(kinds) == 1 else make_indices(kinds).to(device)
        return _Kernel(device, load_kernel(source), table, indices)


def is_fusable(measured: Tensor) -> bool:
    """Return True if a kernel can read this measurement, also while a CUDA graph is captured."""
    if torch.compiler.is_compiling() or not ENABLED or measured.device.type not in _DEVICE_TYPES:
        return False
    is_plain = type(measured) is Tensor or type(measured) is torch.nn.Parameter
    return is_plain and measured.dtype in _DTYPES and has_triton() and is_concrete(measured)


def make_table(kinds: list[LawKind]) -> Tensor:
    """Return the numbers that kernels read from memory: one column per model, or one for all."""
    columns = [table_columns(kind) for kind in kinds]
    models = sum(len(kind.models) for kind in kinds)
    table = torch.zeros(max(1, *map(len, columns)), models, dtype=torch.float64, device="cpu")
    for kind, numbers in zip(kinds, columns, strict=True):
        if numbers:
            values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
            table[: len(numbers), kind.models] = values
    return table[:, :1].contiguous() if table.equal(table[:, :1].expand_as(table)) else table


def make_indices(kinds: list[LawKind]) -> Tensor:
    """Return the index of the kind of law of each model."""
    numbers = {model: number for number, kind in enumerate(kinds) for model in kind.models}
    indices = [numbers[model] for model in range(len(numbers))]
    return torch.tensor(indices, dtype=torch.int32, device="cpu")
