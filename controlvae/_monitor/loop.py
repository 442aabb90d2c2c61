"""Monitor of a controller: its rows in the state block, and its warnings."""

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae._monitor.blocks import fold
from controlvae._monitor.faults import has_run_away
from controlvae._monitor.messages import describe_fault, describe_runaway, describe_skipped
from controlvae._monitor.rows import BlockRows
from controlvae._monitor.state import (
    BLOCK_STEPS,
    FLOAT_VECTORS,
    TENSOR_VECTORS,
    BlockSums,
    LawTraits,
    MonitorState,
    Reading,
    pack_tensors,
    read_traits,
    unpack_floats,
    unpack_tensors,
)
from controlvae._state_layout import StateLayout
from controlvae.errors import ControlError, ControlWarning
from controlvae.laws.backend import FLOATS, TENSORS, widest_float

_SKIPPED = -1  # kind of a warning, next to the faults
_ANY_REASON = "NaN, infinite or out of range"


class LoopRecord(NamedTuple):
    """State of one model's loop in floats."""

    reading: Reading
    sums: BlockSums
    monitor: MonitorState
    traits: LawTraits


class LoopMonitor:
    """Monitor of the loops of one or many models.

    Args:
        layout: Layout of the laws' states.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._rows = BlockRows.arrange(layout.fields, monitor=True)
        self._traits = [read_traits(law) for law in layout.laws]
        self._device_traits: LawTraits | None = None
        self._warned: set[tuple[int, int]] = set()
        self._copy: _HostCopy | None = None
        self._dtype: torch.dtype | None = None
        self._skipped_before: list[float] = []

    def prepare(self, device: torch.device) -> None:
        """Copy the bounds of several laws to a device, before a graph is captured there."""
        if all(each == self._traits[0] for each in self._traits):
            self._device_traits = self._traits[0]
            return
        columns = torch.tensor(self._traits, dtype=widest_float(device), device="cpu").T
        self._device_traits = LawTraits(*columns.to(device))

    def fold_floats(self, monitor: MonitorState, sums: BlockSums, state: Any) -> MonitorState:
        """Return the monitor after a block, and warn if it shows a new fault.

        Args:
            monitor: State before the block.
            sums: Sums over the block.
            state: State of the law.
        """
        reading = self._read(state)
        after = fold(monitor, sums, reading, self._traits[0], FLOATS, FLOAT_VECTORS)
        if after.fault:
            records = [LoopRecord(reading, sums, after, self._traits[0])]
            self.warn(records)
            self.stop_runaway(records)
        return after

    def fold_block(self, block: Tensor) -> None:
        """Update the monitor's rows in place if the block of measurements is full."""
        rows, sums = block[self._rows.monitor], block[self._rows.sums]
        before, filled = unpack_tensors(rows), BlockSums(*sums.unbind(0))
        state = self._layout.state_type(*block[self._rows.law].unbind(0))
        traits = self._device_traits or self._traits[0]
        after = fold(before, filled, self._read(state), traits, TENSORS, TENSOR_VECTORS)
        is_full = filled.block_steps >= BLOCK_STEPS
        rows.copy_(torch.where(is_full, pack_tensors(after), rows))
        sums.copy_(torch.where(is_full, 0.0, sums))

    def watch(self, block: Tensor) -> None:
        """Warn about faults in a block, without waiting for the device.

        The values of a GPU are copied to the host now and read by the next call.
        """
        if block.device.type == "cpu":
            self._judge(self.read_records(block))
        elif block.device.type == "cuda":
            if self._copy is None:
                self._copy = _HostCopy(block)
            if (values := self._copy.read()) is not None:
                self._judge(self.read_records(values))
            self._copy.start(block)

    def read_records(self, block: Tensor) -> list[LoopRecord]:
        """Return the state of every model's loop in floats."""
        columns = block.detach().reshape(len(block), -1).T.tolist()
        pairs = zip(columns, self._traits, strict=True)
        return [self._make_record(column, traits) for column, traits in pairs]

    def make_record(self, state: Any, sums: BlockSums, monitor: MonitorState) -> LoopRecord:
        """Return the state of a single loop.

        Args:
            state: State of the law in floats.
            sums: Sums over the block that is being filled.
            monitor: State of the monitor.
        """
        return LoopRecord(self._read(state), sums, monitor, self._traits[0])

    def warn(self, records: Sequence[LoopRecord]) -> None:
        """Warn about faults that no warning has named yet."""
        for model, record in enumerate(records):
            if fault := int(record.monitor.fault):
                message = describe_fault(record.reading, record.monitor, record.traits)
                self._warn_once(model, fault, message)

    def warn_skipped(self, step: float, reason: str) -> None:
        """Warn about the first measurement that was skipped: its step, and what it was."""
        if (0, _SKIPPED) not in self._warned:
            self._warn_once(0, _SKIPPED, describe_skipped(step, reason, self._dtype))

    def note_dtype(self, dtype: torch.dtype) -> None:
        """Remember the dtype of measurements, for warnings about those that are skipped later."""
        self._dtype = dtype

    def forget_skipped(self, counts: Sequence[float]) -> None:
        """Do not warn about measurements that were skipped before a state was loaded."""
        self._skipped_before = list(counts)

    def stop_runaway(self, records: Sequence[LoopRecord]) -> None:
        """Raise ControlError if a weight has run away."""
        for model, (reading, _, monitor, traits) in enumerate(records):
            if has_run_away(monitor.fault, monitor.ref_beta, reading.beta):
                raise ControlError(self._name(model) + describe_runaway(reading, monitor, traits))

    def _judge(self, records: Sequence[LoopRecord]) -> None:
        """Warn about faults and skipped measurements in the records, and stop a runaway."""
        for model, record in enumerate(records):
            skipped = record.monitor.skipped + record.sums.block_steps - record.sums.block_usable
            before = self._skipped_before[model] if self._skipped_before else 0.0
            if skipped > before:
                message = describe_skipped(record.reading.step, _ANY_REASON, self._dtype)
                self._warn_once(model, _SKIPPED, message.replace("of step", "of a step before"))
        self.warn(records)
        self.stop_runaway(records)

    def _warn_once(self, model: int, kind: int, message: str) -> None:
        if (model, kind) not in self._warned:
            self._warned.add((model, kind))
            message = self._name(model) + message
            warnings.warn(message, ControlWarning, stacklevel=_count_own_frames() + 1)

    def _name(self, model: int) -> str:
        return f"model {model}: " if len(self._traits) > 1 else ""

    def _make_record(self, column: Sequence[float], traits: LawTraits) -> LoopRecord:
        return LoopRecord(
            self._read(self._layout.state_type(*column[self._rows.law])),
            BlockSums(*column[self._rows.sums]),
            unpack_floats(column[self._rows.monitor]),
            traits,
        )

    def _read(self, state: Any) -> Reading:
        beta = state.beta
        # A schedule has no target, and its weight has no bounds.
        target = state.target if hasattr(state, "target") else 0.0 * beta
        return Reading(state.step, target, beta, getattr(state, "unclamped_beta", beta))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copy": None}


class _HostCopy:
    """Copy of a state block of a GPU, made in the background.

    Args:
        block: State block.
    """

    def __init__(self, block: Tensor) -> None:
        self._values = torch.empty(block.shape, dtype=block.dtype, device="cpu", pin_memory=True)
        self._event = torch.cuda.Event()
        self._is_under_way = False

    def start(self, block: Tensor) -> None:
        """Start a copy of the block, unless one is under way."""
        if not self._is_under_way:
            self._values.copy_(block, non_blocking=True)
            self._event.record(torch.cuda.current_stream(block.device))
            self._is_under_way = True

    def read(self) -> Tensor | None:
        """Return the values of a copy that has arrived since the last call, or None."""
        if not self._is_under_way or not self._event.query():
            return None
        self._is_under_way = False
        return self._values


def _count_own_frames() -> int:
    """Return the number of frames from the caller up to the first one outside this package."""
    depth, frame = 0, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("controlvae"):
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return depth
