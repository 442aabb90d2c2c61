"""Controller: a law and its state, with one call per training step."""

import math
from collections.abc import Sequence
from threading import RLock
from typing import Any, TypeVar

import torch
from torch import Tensor

from controlvae._controller_arguments import (
    check_measured,
    count_models,
    expand_laws,
    read_number,
    read_targets,
)
from controlvae._cuda_graph import GraphKey, GraphReplay, is_capturable, is_eager
from controlvae._distributed import count_ranks, mean_over_ranks
from controlvae._fused.update import FusedUpdate, is_fusable
from controlvae._monitor.blocks import Sums, observe, observe_float
from controlvae._monitor.loop import LoopRecord
from controlvae._monitor.state import BLOCK_STEPS, BlockSums, pack_values, unpack_floats
from controlvae._state_layout import (
    as_host_scalars,
    cast_like,
)
from controlvae._state_store import NO_SUMS, Pending, StateStore, as_sums
from controlvae.certificate import SpeedLimit, count_skipped, make_certificate
from controlvae.laws.backend import FLOATS, TENSORS
from controlvae.laws.base import Feedback, Law
from controlvae.laws.checks import LARGEST_MEASUREMENT, UNUSABLE_SUM
from controlvae.laws.states import Signals
from controlvae.laws.straight_line import Update, compile_update

Number = TypeVar("Number", float, Tensor)
# Compiling takes as long as some hundred updates, so a short loop does without.
_COMPILE_AFTER = 200
# A quantity that cannot be negative may still be rounded to a little less than zero.
_LEAST_NONNEGATIVE = -0.01


class Controller(StateStore):
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

    Several threads may call the same controller: each call then waits for the one before. The order
    of their updates, and with it the weights, is that in which the threads arrive.

    Shao et al., *ControlVAE: Tuning, Analytical Properties, and Performance Analysis*.

    Args:
        law: Control law, or a sequence of laws, one for each model.
        models: Number of independent models under one law. Measurements then have shape
            `(models,)`.
        groups: Number of terms of one model under one law, such as its latents or channels. It is
            another name of `models`: measurements and weights have shape `(groups,)`.
        targets: Set point of each model or group, instead of that of the law.
        accumulate: Micro-batches per optimiser step. Call `step` on each. The law updates once per
            optimiser step, on their mean, and all micro-batches of a step get the same weight.
            `step(kl, last=True)` ends a shorter window, such as the last one of an epoch.
        sync_ranks: Average the measurement over `torch.distributed` ranks if a process group is
            initialised, so that all ranks have the same weight. Every rank must then call `step`.
        delayed: Return the weight of the previous step, computed without the present measurement.
            This is how a loop behaves that knows the KL only after its backward pass, such as the
            released program for text.
        monitor: Keep the statistics that `certificate` needs, and warn (`ControlWarning`) about a
            weight of the wrong direction, without effect, without bound or at a bound, and about
            skipped measurements. A weight that grows a millionfold in the wrong direction raises
            `ControlError`.
        nonnegative: The quantity cannot be negative, such as a KL in closed form. Values below
            -0.01 are then skipped like NaN. An estimate from samples may be negative.
    """

    def __init__(
        self,
        law: Law | Sequence[Law],
        *,
        models: int | None = None,
        groups: int | None = None,
        targets: Sequence[float] | Tensor | None = None,
        accumulate: int = 1,
        sync_ranks: bool = True,
        delayed: bool = False,
        monitor: bool = True,
        nonnegative: bool = False,
    ) -> None:
        models = count_models(models, groups, targets)
        laws = expand_laws(law, models)
        models = models if isinstance(law, Law) else len(laws)
        for name, count in (("accumulate", accumulate), ("models", models)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {count}")
        super().__init__(laws, models, accumulate, monitor)
        self.sync_ranks, self.nonnegative = sync_ranks, nonnegative
        # The first of several micro-batches cannot wait for the last one.
        self.delayed = delayed or accumulate > 1
        self._open_loop = all(law.open_loop for law in self.laws)
        self._capturable = is_capturable(self.laws)
        self._replay = GraphReplay()
        self._fused = FusedUpdate(self._layout, self._rows)
        self._update: Update | None = None  # compiled update of a loop on floats
        if targets is not None:
            self.set_target(targets)

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
            if torch.compiler.is_compiling():  # which cannot trace a lock
                return self._step_tensor(measured, last)
            if measured.is_meta:  # there is nothing to measure, and the state stays where it is
                check_measured(measured, self.models)
                return torch.empty_like(measured)
            with self._lock:
                if self._monitor is not None:
                    self._monitor.note_dtype(measured.dtype)
                return self._step_tensor(measured, last)
        if self.models is not None:
            raise TypeError(
                f"measured must be a tensor of shape ({self.models},), got {measured!r:.80}: "
                f"the controller was built for {self.models} models"
            )
        number = measured if type(measured) is float else read_number(measured)
        with self._lock:
            return self._step_float(number, last)

    def _step_float(self, measured: float, last: bool) -> float:
        state = self._as_floats()
        if self.nonnegative and measured < _LEAST_NONNEGATIVE:
            if self._monitor is not None:
                self._monitor.warn_skipped(state.step + 1, f"{measured:g}, below zero,")
            measured = math.nan
        if self.sync_ranks and count_ranks() > 1:
            measured = mean_over_ranks(torch.tensor(measured, dtype=torch.float64)).item()
        new, sums, self._pending, beta = self._advance_floats(
            state, self._sums, self._pending, measured, last
        )
        if sums[0] >= BLOCK_STEPS and self._monitor is not None:
            self._watched = self._monitor.fold_floats(self._watched, BlockSums(*sums), new)
            sums = NO_SUMS
        self._floats, self._sums = new, sums
        return beta

    def _advance_floats(
        self, state: Any, sums: Sums, pending: Pending, measured: float, last: bool
    ) -> tuple[Any, Sums, Pending, float]:
        """Return the state, the sums, the pending measurements and the weight, in floats."""
        total, count = pending[0] + measured, pending[1] + 1
        if count < self.accumulate and not last:
            total = total if abs(total) < LARGEST_MEASUREMENT else UNUSABLE_SUM
            return state, sums, (total, count), state.beta
        update = self._update
        if update is None:
            new = self.laws[0].update(state, total / count, FLOATS)
            if new.step % _COMPILE_AFTER == 0 and self._capturable:
                self._update = compile_update(self.laws[0])
        else:
            new = update(state, total / count)
        if self._monitor is not None:
            target, usable = 0.0 if self._open_loop else new.target, sums[1]
            sums = observe_float(sums, total / count, target)
            if sums[1] == usable:
                self._monitor.warn_skipped(new.step, f"{total / count:g}")
        return new, sums, (0.0, 0), state.beta if self.delayed else new.beta

    def _step_tensor(self, measured: Tensor, last: bool) -> Tensor:
        check_measured(measured, self.models)
        block = self._as_block(measured.device)
        with torch.no_grad():
            value = measured.detach()
            if self.nonnegative:
                value = torch.where(value < _LEAST_NONNEGATIVE, math.nan, value)
            if self.sync_ranks and count_ranks() > 1:
                value = mean_over_ranks(value.to(block.dtype))
            if self._capturable and is_fusable(value):
                weight = self._advance_fused(block, value, measured.dtype, last)
                if weight is not None:
                    return weight
            value = value.to(block.dtype)
            if self.models is None and (scalars := as_host_scalars(value, block)) is not None:
                beta = self._advance_on_host(block, *scalars, last)
            else:
                beta = self._advance_on_device(block, value, last)
            return cast_like(beta, measured.dtype)

    def _advance_on_host(self, block: Tensor, measured: float, array: Any, last: bool) -> Tensor:
        """Update the block through its NumPy view and return the weight."""
        rows = self._rows
        values = array[: rows.pending.stop].tolist()
        total, count = values[rows.pending]
        new, sums, pending, weight = self._advance_floats(
            self._layout.state_type(*values[rows.law]),
            as_sums(values[rows.sums]),
            (total, int(count)),
            measured,
            last,
        )
        if sums[0] >= BLOCK_STEPS and self._monitor is not None:
            watched = unpack_floats(array[rows.monitor].tolist())
            watched = self._monitor.fold_floats(watched, BlockSums(*sums), new)
            array[rows.monitor], sums = pack_values(watched), NO_SUMS
        array[: rows.pending.stop] = [*new, *(sums if self.monitor else ()), *pending]
        torch.autograd.graph.increment_version(block)  # autograd did not see the write
        return torch.tensor(weight, dtype=block.dtype, device="cpu")

    def _advance_fused(
        self, block: Tensor, value: Tensor, dtype: torch.dtype, last: bool
    ) -> Tensor | None:
        """Update the block with one kernel and return the weight, or None without a kernel."""
        is_captured = value.is_cuda and torch.cuda.is_current_stream_capturing()
        key = GraphKey(bool(last), self.accumulate, self.delayed)
        weight = self._fused.advance(block, value, dtype, key)
        if weight is None or self._monitor is None or is_captured:
            return weight
        if self._count_step():
            self._monitor.watch(block)
        return weight

    def _count_step(self) -> bool:
        """Count a step that runs at once and return True if the monitor's block is full."""
        self._calls += 1
        is_full = self._calls >= BLOCK_STEPS * self.accumulate
        self._calls = 0 if is_full else self._calls
        return is_full

    def _advance_on_device(self, block: Tensor, value: Tensor, last: bool) -> Tensor:
        """Update the block, replaying a CUDA graph where there is one, and return the weight."""
        runs_at_once = is_eager(value)
        folds = self._monitor is not None
        if folds and runs_at_once:
            # The host knows when a block is full. A recorded step has to test it every time.
            folds = self._count_step()
        key = GraphKey(bool(last), self.accumulate, self.delayed, folds)
        if value.is_cuda and self._capturable and runs_at_once:
            beta = self._replay.advance(self._advance, block, value, key)
        else:
            beta = self._advance(block, value, key)
        if folds and runs_at_once and self._monitor is not None:
            self._monitor.watch(block)
        return beta

    def _advance(self, block: Tensor, value: Tensor, key: GraphKey) -> Tensor:
        """Update the block in place with tensor operations and return the weight."""
        old = block[self._rows.law].unbind(0)
        beta_row = self._layout.row["beta"]
        if key.accumulate == 1:
            new = self._layout.update(old, value)
            beta = old[beta_row].clone() if key.delayed else new[beta_row]
            sums = self._observe(block, new, value)
            block[: self._rows.sums.stop].copy_(torch.stack([*new, *sums]))
        else:
            beta = old[beta_row].clone()
            total, count = block[self._rows.pending] + torch.stack([value, torch.ones_like(value)])
            is_full = (count >= key.accumulate) | key.last
            new = self._layout.update(old, total / count)
            sums = self._observe(block, new, total / count)
            none = torch.zeros_like(total)
            kept = torch.where(total.abs() < LARGEST_MEASUREMENT, total, UNUSABLE_SUM)
            waiting = [*old, *block[self._rows.sums].unbind(0), kept, count]
            updated = torch.stack([*new, *sums, none, none])
            updated = torch.where(is_full, updated, torch.stack(waiting))
            block[: self._rows.pending.stop].copy_(updated)
        if key.folds and self._monitor is not None:
            self._monitor.fold_block(block)
        return beta

    def _observe(self, block: Tensor, new: Sequence[Tensor], value: Tensor) -> Sequence[Tensor]:
        """Return the sums of the monitor after one more measurement; none without a monitor."""
        if self._monitor is None:
            return ()
        row = self._layout.row.get("target")
        sums = BlockSums(*block[self._rows.sums].unbind(0))
        return observe(sums, value, 0.0 if row is None else new[row], TENSORS)

    @property
    def state(self) -> Any:
        """State of the law, a named tuple of floats or of tensors that the next step overwrites.

        Reading it does not synchronise with the host. For laws of several kinds it has the fields
        of all of them, and a field that a model's law does not have is zero.
        """
        return self._layout.state_type(*self._law_values())

    def signals(self) -> Signals:
        """Return target, measurement, error, terms and β without synchronising with the host."""
        return self._layout.signals(self._law_values())

    @property
    def beta(self) -> Any:
        """Current weight: a float, or a float64 tensor after steps on tensors."""
        return self._read("beta")

    @property
    def target(self) -> Any:
        """Current set point, of the same kind as `beta`. None if every law is open-loop."""
        return None if self._open_loop else self._read("target")

    def stats(self) -> dict[str, Any]:
        """Return target, measured, error, p, i, beta, saturated and skipped as plain numbers.

        `skipped` counts measurements that were NaN, infinite or out of range. `measured` and `error`
        are None as long as nothing was measured. The values are lists for several models. The call
        waits for the device, so make it once per log line.
        """
        signals, counts = self.signals(), self.state.measured_count
        if isinstance(signals.beta, Tensor):
            signals, counts = Signals(*torch.stack(signals).tolist()), counts.tolist()
        is_closed_loop = not self._open_loop
        if self.models is None:
            saturated: Any = _is_saturated(self.laws[0], signals.unclamped_beta)
        else:
            pairs = zip(self.laws, signals.unclamped_beta, strict=True)
            saturated = [_is_saturated(law, unclamped) for law, unclamped in pairs]
        return {
            "target": signals.target if is_closed_loop else None,
            "measured": _hide_unmeasured(signals.measured, counts),
            "error": _hide_unmeasured(signals.error, counts) if is_closed_loop else None,
            "p": signals.proportional,
            "i": signals.integral,
            "beta": signals.beta,
            "saturated": saturated,
            "skipped": self._count_skipped(),
        }

    def certificate(self, *, speed_limit: SpeedLimit | None = None, unit: str = "") -> Any:
        """Return a `Certificate` of how well the loop holds its target; a list for several models.

        The call waits for the device, so make it at the end or once per log line.

        Args:
            speed_limit: Most that the quantity can move per step, from `cv.speed_limit`: a number,
                or pairs of a measurement and the limit there, taken now and then while the quantity
                approached its target. The certificate then has the least possible number of steps.
            unit: Unit of the measurement for the sentences of the certificate, such as "nats".

        >>> control = Controller(PI(target=18.0))
        >>> for kl in [18.3, 17.9, 18.2, 17.6, 18.1] * 100:
        ...     beta = control.step(kl)
        >>> print(control.certificate(unit="nats"))
        Settled since ...
        """
        if self._monitor is None:
            raise ValueError("certificate needs a controller with monitor=True, got monitor=False")
        records = self._read_records()
        self._monitor.warn(records)
        certificates = [make_certificate(record, speed_limit, unit) for record in records]
        return certificates[0] if self.models is None else certificates

    def set_target(
        self, target: float | Sequence[float] | Tensor, model: int | None = None
    ) -> None:
        """Change the set point from now on, without a jump in β. It replaces a schedule.

        Args:
            target: Set point in the unit of the measurement: one value, or one per model.
            model: Index of the only model to change. None changes all.
        """
        self._check_model(model)
        laws = self.laws if model is None else (self.laws[model],)
        values = read_targets(target, laws)
        with self._lock:
            self._move_target(values, model)

    def _move_target(self, values: Tensor, model: int | None) -> None:
        if self._block is None and self.models is None:
            law = self.laws[0]
            assert isinstance(law, Feedback)
            self._floats = law.retarget(self._floats, values.item(), FLOATS)
            return
        block = self._current_block()
        values = values.to(block.device, block.dtype).expand(len(self.laws))
        self._layout.retarget(block, values, model)

    def _read_records(self) -> list[LoopRecord]:
        assert self._monitor is not None
        if self._block is None and self.models is None:
            return [self._monitor.make_record(self._floats, BlockSums(*self._sums), self._watched)]
        return self._monitor.read_records(self._current_block())

    def _count_skipped(self) -> Any:
        """Return the number of unusable measurements, a list for several models."""
        if self._monitor is not None:
            records = self._read_records()
            self._monitor.warn(records)
            counts = [int(count_skipped(record)) for record in records]
        else:
            state = self.state
            skipped = torch.as_tensor(state.step - state.measured_count)
            counts = [int(count) for count in skipped.reshape(-1).tolist()]
        return counts[0] if self.models is None else counts

    def __getstate__(self) -> dict[str, Any]:
        # A copy has a different state tensor. Generated code and locks cannot be pickled.
        return {**self.__dict__, "_replay": GraphReplay(), "_update": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"nonnegative": False, **state, "_lock": RLock()})

    def __repr__(self) -> str:
        law = repr(self.laws[0]) if len(self._layout.groups) == 1 else repr(list(self.laws))
        defaults = {
            "models": None,
            "accumulate": 1,
            "sync_ranks": True,
            "delayed": self.accumulate > 1,
            "monitor": True,
            "nonnegative": False,
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


def _hide_unmeasured(value: Any, count: Any) -> Any:
    """Return a value, or None where no measurement was usable yet."""
    if isinstance(value, list):
        return [_hide_unmeasured(*pair) for pair in zip(value, count, strict=True)]
    return value if count > 0 else None


def _is_saturated(law: Law, unclamped: float) -> bool:
    low, high = law.bounds
    return not low <= unclamped <= high
