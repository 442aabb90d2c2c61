"""State of a controller: in floats, or in the rows of one tensor."""

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any, Self

import torch
from torch import Tensor

from controlvae._monitor.blocks import Sums
from controlvae._monitor.loop import LoopMonitor
from controlvae._monitor.rows import BlockRows, initial_monitor_values, read_saved_monitor
from controlvae._monitor.state import pack_values, unpack_floats
from controlvae._saved_state import PENDING_FIELDS, identify_laws, read_saved_state
from controlvae._state_layout import StateLayout, make_block, to_host_float64
from controlvae.laws.backend import outside_inference_mode, widest_float
from controlvae.laws.base import Law

NO_SUMS: Sums = (0.0, 0.0, 0.0)
Pending = tuple[float, int]  # sum and number of the measurements since the last optimiser step


class StateStore:
    """State of the laws, of the monitor and of the pending measurements.

    Steps on floats keep it as floats. Steps on tensors keep it in one block (rows, *shape), so that
    an update is a single write.

    Args:
        laws: The law of each model.
        models: Number of models, None for a single one without a model axis.
        accumulate: Micro-batches per optimiser step.
        monitor: Keep the state of a monitor as well.
    """

    def __init__(
        self, laws: tuple[Law, ...], models: int | None, accumulate: int, monitor: bool
    ) -> None:
        self.laws, self.models = laws, models
        self.accumulate, self.monitor = accumulate, monitor
        self._layout = StateLayout(laws)
        self._rows = BlockRows.arrange(self._layout.fields, monitor=monitor)
        self._monitor = LoopMonitor(self._layout) if monitor else None
        self._block: Tensor | None = None
        self._calls = 0  # steps on tensors in the monitor's present block
        self._floats: Any = None
        self._sums = NO_SUMS
        self._pending: Pending = (0.0, 0)
        self._watched: Any = None
        self._lock: Any = RLock()  # of steps from several threads
        if models is None:
            self._set_floats(self._initial_values())

    def state_dict(self, model: int | None = None) -> dict[str, Any]:
        """Return the state, the pending measurements and an identifier of the kind of law.

        Values are floats, or copies of tensors after steps on tensors. Those of the monitor have
        names with the prefix `monitor_`.

        Args:
            model: Index of the only model to return. None returns all of them.
        """
        self._check_model(model)
        names = self._rows.names
        if self._block is None and self.models is None:
            return {**dict(zip(names, self._float_values(), strict=True)), "law": self._law_ids()}
        block = self._current_block()
        if model is None:
            rows = dict(zip(names, block.unbind(0), strict=True))
            return {**{name: row.clone() for name, row in rows.items()}, "law": self._law_ids()}
        return {
            **{name: block[row, model].clone() for name, row in self._rows_of(model).items()},
            "law": self._law_ids()[model].clone(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], model: int | None = None) -> None:
        """Restore a `state_dict()`. Tensors in use keep their addresses.

        A state without the values of a monitor starts a new one. Bounds of the law apply to the
        loaded weight at once, also if they are not those of the law that was saved.

        Args:
            saved: Dictionary returned by `state_dict`, also by that of earlier versions.
            model: Index of the only model to restore. None restores all.

        Raises:
            ValueError: If fields are missing or unknown, a value is not finite, or the shape or the
                kind of law differs. The controller is then as before.
        """
        self._check_model(model)
        with self._lock:
            self._load(saved, model)
            if self._monitor is not None:
                skipped = self._read_row("monitor_skipped")
                self._monitor.forget_skipped(skipped)

    def _load(self, saved: Mapping[str, Any], model: int | None) -> None:
        if model is not None:
            self._load_model(saved, model)
            return
        shape = () if self.models is None else (self.models,)
        values = self._read_saved_state(saved, self._layout.fields, shape, self._law_ids())
        if self._block is None and not isinstance(values[0], Tensor):
            self._set_floats([float(value) for value in values])
            return
        stacked = torch.stack([to_host_float64(value) for value in values])
        if self._block is None:
            self._block = self._make_block(stacked, values[0].device)
        else:
            self._block.copy_(stacked)
        if self._monitor is not None:
            steps = stacked[self._rows.sums.start].max()
            self._calls = self.accumulate * int(steps)

    def to(self, device: torch.device | str) -> Self:
        """Move the state to a device, for example before a CUDA graph captures the first step."""
        device = torch.device(device)
        if device.type == "meta":
            raise ValueError("device must have memory for the state, got meta")
        if device.type == "cuda" and device.index is None:
            # Without an index the same device would compare as a different one.
            device = torch.device("cuda", torch.cuda.current_device())
        self._as_block(device)
        return self

    def _read_saved_state(
        self,
        saved: Mapping[str, Any],
        fields: Sequence[str],
        shape: tuple[int, ...],
        law_ids: float | Tensor,
        model: int | None = None,
    ) -> list[Any]:
        """Return the saved value of each row.

        Args:
            saved: Dictionary returned by `state_dict`.
            fields: Fields of the laws.
            shape: Shape of each value.
            law_ids: Identifiers of the laws.
            model: Index of the only model to restore.
        """
        values = read_saved_state(saved, fields, shape, law_ids)
        if self.accumulate == 1:  # the micro-batches that would complete the window never come
            values[-2:] = [0 * value for value in values[-2:]]
        rows = dict(zip((*fields, *PENDING_FIELDS), values, strict=True))
        rows["beta"] = self._within_bounds(rows["beta"], model)
        if self.monitor:
            rows |= read_saved_monitor(saved, rows)
        return [rows[name] for name in self._rows.names if name in rows]

    def _within_bounds(self, beta: Any, model: int | None) -> Any:
        """Return a weight clamped to the bounds of its law."""
        laws = self.laws if model is None else self.laws[model : model + 1]
        if not isinstance(beta, Tensor):
            low, high = laws[0].bounds
            return min(max(beta, low), high)
        bounds = torch.tensor([law.bounds for law in laws], dtype=torch.float64, device="cpu")
        low_row, high_row = bounds.to(widest_float(beta.device)).to(beta.device).T
        shape = beta.shape
        clamped = torch.clamp(
            beta.to(low_row.dtype), low_row.reshape(shape), high_row.reshape(shape)
        )
        return clamped.to(beta.dtype)

    def _law_values(self) -> Sequence[Any]:
        """Return the fields of the state: floats, or views of the block."""
        if self._block is None and self.models is None:
            values: Sequence[Any] = self._floats
            return values
        return self._current_block()[self._rows.law].unbind(0)

    def _initial_values(self) -> list[Any]:
        """Return the first value of each row: a float, or a list of one per model."""
        columns = []
        for state in (law.initial_state() for law in self.laws):
            values = dict.fromkeys(self._layout.fields, 0.0) | state._asdict()
            rows = values | dict.fromkeys(PENDING_FIELDS, 0.0)
            rows |= initial_monitor_values(state._asdict()) if self.monitor else {}
            columns.append([rows[name] for name in self._rows.names])
        return (
            columns[0] if self.models is None else [list(row) for row in zip(*columns, strict=True)]
        )

    def _float_values(self) -> list[Any]:
        """Return the value of each row in floats."""
        if self._monitor is None:
            return [*self._floats, *self._pending]
        return [*self._floats, *self._sums, *self._pending, *pack_values(self._watched)]

    def _set_floats(self, values: Sequence[float]) -> None:
        """Keep the values of the rows as floats."""
        rows = self._rows
        total, count = values[rows.pending]
        self._floats = self._layout.state_type(*values[rows.law])
        self._sums, self._pending = as_sums(values[rows.sums]), (total, int(count))
        self._watched = unpack_floats(values[rows.monitor]) if self.monitor else None

    def _read(self, name: str) -> Any:
        value = self._law_values()[self._layout.row[name]]
        with outside_inference_mode():
            return value.clone() if isinstance(value, Tensor) else value

    def _read_row(self, name: str) -> list[float]:
        """Return a row of the state for every model, in floats."""
        if self._block is None and self.models is None:
            return [self._float_values()[self._rows.names.index(name)]]
        row: list[float] = self._current_block()[self._rows.names.index(name)].reshape(-1).tolist()
        return row

    def _check_model(self, model: int | None) -> None:
        if model is not None and not 0 <= model < (self.models or 0):
            raise ValueError(
                f"no model {model}: the controller was built with models={self.models}"
            )

    def _rows_of(self, model: int) -> dict[str, int]:
        """Return the rows that one model uses: all but the fields of other laws."""
        own, all_fields = self._layout.rows_of(model), set(self._layout.fields)
        rows = {name: row for row, name in enumerate(self._rows.names) if name not in all_fields}
        return {**own, **rows}

    def _load_model(self, saved: Mapping[str, Any], model: int) -> None:
        rows = self._rows_of(model)
        fields = list(self._layout.rows_of(model))
        values = self._read_saved_state(saved, fields, (), self._law_ids()[model], model)
        block = self._current_block()
        names = [name for name in self._rows.names if name in rows]
        column = torch.tensor([float(value) for value in values], dtype=block.dtype, device="cpu")
        block[[rows[name] for name in names], model] = column.to(block.device)

    def _as_floats(self) -> Any:
        if self._block is not None:  # a loop that changed from tensors to floats
            self._set_floats(self._block.tolist())
            self._block = None
        return self._floats

    def _law_ids(self) -> Any:
        ids = identify_laws(self.laws)
        return (
            ids[0] if self.models is None else torch.tensor(ids, dtype=torch.float64, device="cpu")
        )

    def _current_block(self) -> Tensor:
        """Return the block on the device where it is, the host before the first step."""
        return self._as_block(torch.device("cpu")) if self._block is None else self._block

    def _as_block(self, device: torch.device) -> Tensor:
        if self._block is None:
            rows = self._float_values() if self.models is None else self._initial_values()
            values = torch.tensor(rows, dtype=torch.float64, device="cpu")
            self._calls = self.accumulate * int(self._sums[0])
            self._block = self._make_block(values, device)
        elif self._block.device != device:
            self._block = self._make_block(self._block, device)
        return self._block

    def _make_block(self, values: Tensor, device: torch.device) -> Tensor:
        if self._monitor is not None:
            self._monitor.prepare(device)
        return make_block(values, device)


def as_sums(values: Sequence[float]) -> Sums:
    """Return the sums of a monitor's block; zeros without a monitor."""
    return (values[0], values[1], values[2]) if values else NO_SUMS
