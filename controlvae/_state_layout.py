"""Layout of the states of one or many models in the rows of one tensor."""

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae._cuda_graph import is_eager
from controlvae.laws.backend import TENSORS, Value, outside_inference_mode, widest_float
from controlvae.laws.base import Feedback, Law
from controlvae.laws.states import Signals


class LawGroup(NamedTuple):
    """Neighbouring models under equal laws, which are updated together."""

    law: Law
    models: slice
    state_type: type[Any]
    rows: tuple[int, ...]  # row of each field of `state_type`


class StateLayout:
    """Fields that the laws need, and the row of each field.

    Laws of one kind use the fields of their state. Laws of several kinds share the union of their
    fields, and a field that a model's law does not have stays zero.

    Args:
        laws: The law of each model.
    """

    def __init__(self, laws: Sequence[Law]) -> None:
        self.laws = tuple(laws)
        runs = _runs_of_equal_laws(self.laws)
        types: list[type[Any]] = [type(law.initial_state()) for law, _ in runs]
        self.fields = tuple(dict.fromkeys(name for kind in types for name in kind._fields))
        self.row = {name: number for number, name in enumerate(self.fields)}
        self.groups = [
            LawGroup(law, models, kind, tuple(self.row[name] for name in kind._fields))
            for (law, models), kind in zip(runs, types, strict=True)
        ]
        one_kind = all(kind is types[0] for kind in types)
        self.state_type: Any = types[0] if one_kind else namedtuple("MixedState", self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return StateLayout, (self.laws,)  # a class made at run time cannot be pickled

    def initial_rows(self) -> list[list[float]]:
        """Return the initial value of every field for every model."""
        states = [law.initial_state() for law in self.laws]
        return [[getattr(state, name, 0.0) for state in states] for name in self.fields]

    def update(self, rows: Sequence[Tensor], measured: Tensor) -> tuple[Tensor, ...]:
        """Return the rows after one update of every law."""
        if len(self.groups) == 1:
            return tuple(self.laws[0].update(self.state_type(*rows), measured, TENSORS))
        parts = [_update_group(group, rows, measured) for group in self.groups]
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))

    def signals(self, rows: Sequence[Value]) -> Signals:
        """Return the values to log; a field that no law has is zero."""
        zero = 0 * rows[self.row["beta"]]
        return Signals(
            *(rows[self.row[name]] if name in self.row else zero for name in Signals._fields)
        )

    def retarget(self, block: Tensor, targets: Tensor, model: int | None = None) -> None:
        """Fix the set points of all models, or of one, in place.

        Args:
            block: State block, (fields + 2,) or (fields + 2, models).
            targets: Set point of each model.
            model: Index of the only model to change.
        """
        table = block.view(len(block), -1)  # a single model without a vector has no model axis
        for group in self.groups:
            models = group.models if model is None else slice(model, model + 1)
            if not group.models.start <= models.start < group.models.stop:
                continue
            assert isinstance(group.law, Feedback)
            state = group.state_type(*(table[row, models] for row in group.rows))
            moved = group.law.retarget(state, targets[models])
            for row, value in zip(group.rows, moved, strict=True):
                table[row, models] = value

    def rows_of(self, model: int) -> dict[str, int]:
        """Return the fields of one model's law and their rows."""
        group = next(g for g in self.groups if g.models.start <= model < g.models.stop)
        return dict(zip(group.state_type._fields, group.rows, strict=True))


def make_block(block: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a state block in the widest dtype of a device."""
    with outside_inference_mode():
        return block.to(widest_float(device)).to(device).contiguous().clone()


def to_host_float64(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return torch.as_tensor(value, device="cpu").double()
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def as_host_scalars(value: Tensor, block: Tensor) -> tuple[float, Any] | None:
    """Return the measurement as a float and the block as a NumPy view of its memory.

    The operations of a law on 0-dim tensors cost forty times as much as on floats. The result is
    None if the tensors are not in host memory or operations are being recorded.
    """
    if value.device.type != "cpu" or not is_eager(value):
        return None
    try:
        return float(value.numpy()), block.numpy()
    except (RuntimeError, TypeError):  # torch without NumPy
        return None


def cast_like(beta: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy in the dtype of the loss, clamped to finite numbers of float16 if need be."""
    if dtype == torch.float16:
        largest = torch.finfo(dtype).max
        beta = beta.clamp(-largest, largest)
    return beta.to(dtype, copy=True)


def _update_group(group: LawGroup, rows: Sequence[Tensor], measured: Tensor) -> list[Tensor]:
    part = [row[group.models] for row in rows]
    before = group.state_type(*(part[number] for number in group.rows))
    after = group.law.update(before, measured[group.models], TENSORS)
    for number, value in zip(group.rows, after, strict=True):
        part[number] = value
    return part


def _runs_of_equal_laws(laws: Sequence[Law]) -> list[tuple[Law, slice]]:
    runs: list[tuple[Law, slice]] = []
    for model, law in enumerate(laws):
        if runs and runs[-1][0] == law:
            runs[-1] = (law, slice(runs[-1][1].start, model + 1))
        else:
            runs.append((law, slice(model, model + 1)))
    return runs
