"""Controller: a law and its state, with one call per training step."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from controlvae._controller_arguments import expand_laws, read_targets
from controlvae._cuda_graph import GraphKey, GraphReplay, is_capturable, is_eager
from controlvae._distributed import count_ranks, mean_over_ranks
from controlvae._saved_state import PENDING_FIELDS, identify_laws, read_saved_state
from controlvae._state_layout import (
    StateLayout,
    as_host_scalars,
    cast_like,
    make_block,
    to_host_float64,
)
from controlvae.laws.backend import FLOATS, outside_inference_mode
from controlvae.laws.base import Feedback, Law
from controlvae.laws.states import Signals

Number = TypeVar("Number", float, Tensor)
Pending = tuple[float, int]  # sum and number of the measurements since the last optimiser step


class Controller:
    """Controller of the weight of a loss term.

    It changes the weight during training so that the term stays at its set point.

    >>> control = Controller(PI(target=18.0))
    >>> recon, kl = 90.0, 21.0                          # of a batch, in nats per example
    >>> loss = recon + control.step(kl) * kl            # in the loop, instead of a fixed weight

    With Python numbers, `step` returns a float and takes a few microseconds. With tensors, it
    returns a detached tensor of the same dtype and device. It never synchronises with the host and
    writes the state in place, so a CUDA graph or `torch.compile` may contain the call. A tensor in
    host memory costs little more than a number. Save the state with `state_dict()`, like that of an
    lr_scheduler.

    Shao et al., *ControlVAE: Tuning, Analytical Properties, and Performance Analysis*.

    Args:
        law: Control law, or a sequence of laws, one for each model.
        models: Number of independent models under one law. Measurements then have shape
            `(models,)`.
        accumulate: Micro-batches per optimiser step. Call `step` on each. The law updates once per
            optimiser step, on their mean, and all micro-batches of a step get the same weight.
            `step(kl, last=True)` ends a shorter window, such as the last one of an epoch.
        sync_ranks: Average the measurement over `torch.distributed` ranks if a process group is
            initialised, so that all ranks have the same weight. Every rank must then call `step`.
        delayed: Return the weight of the previous step, computed without the present measurement.
            This is how a loop behaves that knows the KL only after its backward pass, such as the
            released program for text.
    """

    def __init__(
        self,
        law: Law | Sequence[Law],
        *,
        models: int | None = None,
        accumulate: int = 1,
        sync_ranks: bool = True,
        delayed: bool = False,
    ) -> None:
        self.laws = expand_laws(law, models)
        self.models = models if isinstance(law, Law) else len(self.laws)
        for name, count in (("accumulate", accumulate), ("models", self.models)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {count}")
        self.accumulate = accumulate
        self.sync_ranks = sync_ranks
        # The first of several micro-batches cannot wait for the last one.
        self.delayed = delayed or accumulate > 1
        self._layout = StateLayout(self.laws)
        self._capturable = is_capturable(self.laws)
        # Steps on floats keep the state here.
        self._floats: Any = self.laws[0].initial_state() if self.models is None else None
        self._pending: Pending = (0.0, 0)
        # Steps on tensors keep the state and the pending sum in one block (fields + 2, *shape), so
        # that an update is a single write.
        self._block: Tensor | None = None
        self._replay = GraphReplay()

    def step(self, measured: Number, *, last: bool = False) -> Number:
        """Update the law with the measurement of a batch and return the weight to use for it.

        Args:
            measured: The controlled loss term in nats per example, averaged over the batch.
            last: The optimiser steps after this micro-batch, even if fewer than `accumulate` were
                measured.

        Returns:
            The weight, of the same kind as `measured`.
        """
        if isinstance(measured, Tensor):
            return self._step_tensor(measured, last)
        if self.models is not None:
            raise TypeError(
                f"measured must be a tensor of shape ({self.models},), got {measured!r}: "
                f"the controller was built for {self.models} models"
            )
        try:
            number = float(measured)
        except TypeError:
            raise TypeError(
                f"measured must be a number or a tensor in nats per example, got {measured!r}"
            ) from None
        return self._step_float(number, last)

    def _step_float(self, measured: float, last: bool) -> float:
        state = self._as_floats()
        if self.sync_ranks and count_ranks() > 1:
            measured = mean_over_ranks(torch.tensor(measured, dtype=torch.float64)).item()
        self._floats, self._pending, beta = self._advance_floats(
            state, self._pending, measured, last
        )
        return beta

    def _advance_floats(
        self, state: Any, pending: Pending, measured: float, last: bool
    ) -> tuple[Any, Pending, float]:
        """Return the state, the pending sum and the weight after a measurement, in floats."""
        total, count = pending[0] + measured, pending[1] + 1
        if count < self.accumulate and not last:
            return state, (total, count), state.beta
        new = self.laws[0].update(state, total / count, FLOATS)
        return new, (0.0, 0), state.beta if self.delayed else new.beta

    def _step_tensor(self, measured: Tensor, last: bool) -> Tensor:
        self._check_measured(measured)
        block = self._as_block(measured.device)
        with torch.no_grad():
            value = measured.detach().to(block.dtype)
            if self.sync_ranks and count_ranks() > 1:
                value = mean_over_ranks(value)
            if self.models is None and (scalars := as_host_scalars(value, block)) is not None:
                beta = self._advance_on_host(block, *scalars, last)
            else:
                key = GraphKey(bool(last), self.accumulate, self.delayed)
                if value.is_cuda and self._capturable and is_eager(value):
                    beta = self._replay.advance(self._advance, block, value, key)
                else:
                    beta = self._advance(block, value, key)
            return cast_like(beta, measured.dtype)

    def _check_measured(self, measured: Tensor) -> None:
        shape = () if self.models is None else (self.models,)
        if not measured.is_floating_point():
            raise TypeError(
                f"measured must be a floating-point tensor, got {measured.dtype}: "
                "the weight is returned in its dtype"
            )
        if measured.shape != shape:
            raise ValueError(
                f"measured must have shape {shape}, got {tuple(measured.shape)}: sum the KL over "
                "the latents and average it over the batch; for several models at once, build "
                "Controller(law, models=N)"
            )

    def _advance_on_host(self, block: Tensor, measured: float, array: Any, last: bool) -> Tensor:
        """Update the block through its NumPy view and return the weight."""
        *state, total, count = array.tolist()
        new, pending, weight = self._advance_floats(
            self._layout.state_type(*state), (total, int(count)), measured, last
        )
        array[:] = [*new, *pending]
        torch.autograd.graph.increment_version(block)  # autograd did not see the write
        return torch.tensor(weight, dtype=block.dtype, device="cpu")

    def _advance(self, block: Tensor, value: Tensor, key: GraphKey) -> Tensor:
        """Update the block in place with tensor operations and return the weight."""
        last, accumulate, delayed = key
        old, beta_row = block[:-2].unbind(0), self._layout.row["beta"]
        if accumulate == 1:
            new = self._layout.update(old, value)
            beta = old[beta_row].clone() if delayed else new[beta_row]
            block[:-2].copy_(torch.stack(tuple(new)))
            return beta
        beta = old[beta_row].clone()
        total, count = block[-2] + value, block[-1] + 1
        is_full = (count >= accumulate) | last
        new = self._layout.update(old, total / count)
        updated = torch.stack([*new, torch.zeros_like(total), torch.zeros_like(count)])
        waiting = torch.stack([*old, total, count])
        block.copy_(torch.where(is_full, updated, waiting))
        return beta

    @property
    def state(self) -> Any:
        """State of the law, a named tuple of floats or of tensors that the next step overwrites.

        Reading it does not synchronise with the host. For laws of several kinds it has the fields
        of all of them, and a field that a model's law does not have is zero.
        """
        return self._layout.state_type(*self._rows())

    def signals(self) -> Signals:
        """Return target, measurement, error, terms and β without synchronising with the host."""
        return self._layout.signals(self._rows())

    @property
    def beta(self) -> Any:
        """Current weight: a float, or a float64 tensor after steps on tensors."""
        return self._read("beta")

    @property
    def target(self) -> Any:
        """Current set point, of the same kind as `beta`. None if every law is open-loop."""
        return None if all(law.open_loop for law in self.laws) else self._read("target")

    def stats(self) -> dict[str, Any]:
        """Return target, measured, error, p, i, beta and saturated as plain numbers.

        The values are lists for several models. The call waits for the device, so make it once per
        log line.
        """
        signals = self.signals()
        if isinstance(signals.beta, Tensor):
            signals = Signals(*torch.stack(signals).tolist())
        is_closed_loop = not all(law.open_loop for law in self.laws)
        if self.models is None:
            saturated: Any = _is_saturated(self.laws[0], signals.unclamped_beta)
        else:
            pairs = zip(self.laws, signals.unclamped_beta, strict=True)
            saturated = [_is_saturated(law, unclamped) for law, unclamped in pairs]
        return {
            "target": signals.target if is_closed_loop else None,
            "measured": signals.measured,
            "error": signals.error if is_closed_loop else None,
            "p": signals.proportional,
            "i": signals.integral,
            "beta": signals.beta,
            "saturated": saturated,
        }

    def set_target(self, target: float | Tensor, model: int | None = None) -> None:
        """Change the set point from now on, without a jump in β. It replaces a schedule.

        Args:
            target: Set point in nats per example: one value, or one per model.
            model: Index of the only model to change. None changes all.
        """
        self._check_model(model)
        laws = self.laws if model is None else (self.laws[model],)
        values = read_targets(target, laws)
        if self._block is None and self.models is None:
            law = self.laws[0]
            assert isinstance(law, Feedback)
            self._floats = law.retarget(self._floats, values.item(), FLOATS)
            return
        block = self._current_block()
        values = values.to(block.device, block.dtype).expand(len(self.laws))
        self._layout.retarget(block, values, model)

    def state_dict(self, model: int | None = None) -> dict[str, Any]:
        """Return the state, the pending measurements and an identifier of the kind of law.

        Values are floats, or copies of tensors after steps on tensors.

        Args:
            model: Index of the only model to return. None returns all of them.
        """
        self._check_model(model)
        if self._block is None and self.models is None:
            pending = zip(PENDING_FIELDS, self._pending, strict=True)
            return {**self._floats._asdict(), **dict(pending), "law": self._law_ids()}
        block = self._current_block()
        rows = self._layout.row if model is None else self._layout.rows_of(model)
        rows = {**rows, **dict(zip(PENDING_FIELDS, (-2, -1), strict=True))}
        where = ... if model is None else model
        return {
            **{name: block[row][where].clone() for name, row in rows.items()},
            "law": self._law_ids() if model is None else self._law_ids()[model].clone(),
        }

    def load_state_dict(self, saved: Mapping[str, Any], model: int | None = None) -> None:
        """Restore a `state_dict()`. Tensors in use keep their addresses.

        Args:
            saved: Dictionary returned by `state_dict`, also by that of earlier versions.
            model: Index of the only model to restore. None restores all.

        Raises:
            ValueError: If fields are missing or unknown, or the shape or the kind of law differs.
        """
        self._check_model(model)
        if model is not None:
            self._load_model(saved, model)
            return
        shape = () if self.models is None else (self.models,)
        values = self._read_saved_state(saved, self._layout.fields, shape, self._law_ids())
        if self._block is None and not isinstance(values[0], Tensor):
            *state, total, count = map(float, values)
            self._floats, self._pending = self._layout.state_type(*state), (total, int(count))
            return
        stacked = torch.stack([to_host_float64(value) for value in values])
        if self._block is None:
            self._block = make_block(stacked, values[0].device)
        else:
            self._block.copy_(stacked)

    def to(self, device: torch.device | str) -> "Controller":
        """Move the state to a device, for example before a CUDA graph captures the first step."""
        device = torch.device(device)
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
    ) -> list[Any]:
        values = read_saved_state(saved, fields, shape, law_ids)
        if self.accumulate == 1:  # the micro-batches that would complete the window never come
            values[-2:] = [0 * value for value in values[-2:]]
        return values

    def _rows(self) -> Sequence[Any]:
        """Return the fields of the state: floats, or views of the block."""
        if self._block is None and self.models is None:
            rows: Sequence[Any] = self._floats
            return rows
        return self._current_block()[:-2].unbind(0)

    def _read(self, name: str) -> Any:
        value = self._rows()[self._layout.row[name]]
        with outside_inference_mode():
            return value.clone() if isinstance(value, Tensor) else value

    def _check_model(self, model: int | None) -> None:
        if model is not None and not 0 <= model < (self.models or 0):
            raise ValueError(
                f"no model {model}: the controller was built with models={self.models}"
            )

    def _load_model(self, saved: Mapping[str, Any], model: int) -> None:
        rows = self._layout.rows_of(model)
        ids = self._law_ids()
        assert isinstance(ids, Tensor)
        values = self._read_saved_state(saved, tuple(rows), (), ids[model])
        block = self._current_block()
        column = torch.tensor([float(value) for value in values], dtype=block.dtype, device="cpu")
        block[[*rows.values(), -2, -1], model] = column.to(block.device)

    def _as_floats(self) -> Any:
        if self._block is not None:  # a loop that changed from tensors to floats
            *state, total, count = self._block.tolist()
            self._floats = self._layout.state_type(*state)
            self._pending, self._block = (total, int(count)), None
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
            if self.models is None:
                rows: list[Any] = [*self._floats, *self._pending]
            else:
                rows = [*self._layout.initial_rows(), *([0.0] * self.models for _ in range(2))]
            self._block = make_block(torch.tensor(rows, dtype=torch.float64, device="cpu"), device)
        elif self._block.device != device:
            self._block = make_block(self._block, device)
        return self._block

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_replay": GraphReplay()}  # a copy has a different state tensor

    def __repr__(self) -> str:
        law = repr(self.laws[0]) if len(self._layout.groups) == 1 else repr(list(self.laws))
        defaults = {
            "models": None,
            "accumulate": 1,
            "sync_ranks": True,
            "delayed": self.accumulate > 1,
        }
        arguments = [law]
        for name, default in defaults.items():
            if getattr(self, name) != default:
                arguments.append(f"{name}={getattr(self, name)}")
        if (self._block is not None or self._floats) and "target_fixed" in self._layout.row:
            fixed, target = (
                value.tolist() if isinstance(value, Tensor) else value
                for value in (self._read("target_fixed"), self._read("target"))
            )
            if any(fixed) if isinstance(fixed, list) else fixed:
                arguments.append(f"target moved to {target}")
        return f"Controller({', '.join(arguments)})"


def _is_saturated(law: Law, unclamped: float) -> bool:
    low, high = law.bounds
    return not low <= unclamped <= high
