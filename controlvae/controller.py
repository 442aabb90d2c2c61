"""The controller a training loop holds: a law, its state, and the bookkeeping around one call per step."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import torch
from torch import Tensor
from torch import distributed as dist

from controlvae._cuda_graph import GraphKey, Replay, is_eager, recordable
from controlvae.laws.backend import FLOATS, TENSORS, outside_inference_mode, widest_float
from controlvae.laws.base import Feedback, Law, State

Number = TypeVar("Number", float, Tensor)
_HAS_DISTRIBUTED = dist.is_available()
_MOVING = (*State._fields, "pending_sum", "pending_count")
_YOUNGER = {"last", "spread", "law"}  # states saved before these were kept do without


Pending = tuple[float, int]  # the sum of an optimiser step's measurements so far, and their number


class Controller:
    """Moves the weight of a loss term so that the term stays at its set point.

    >>> control = Controller(PI(target=18.0))
    >>> recon, kl = 90.0, 21.0                          # of a batch, in nats per example
    >>> loss = recon + control.step(kl) * kl            # in the loop, instead of a fixed weight

    Python numbers in, a Python float out, at a few microseconds a step. Tensors in, a tensor of the same dtype and
    device out: detached, never synchronised with the host, the state written in place, so that a CUDA graph or
    `torch.compile` may contain the call. A tensor on the host costs little more than a number. The state is saved with
    `state_dict()`, like an lr_scheduler's.

    Args:
        law: what to compute; or a sequence of laws, one for each model of a vector.
        models: hold a vector of so many independent models under one law. Measurements then have shape `(models,)`.
        accumulate: micro-batches in one optimiser step. Call `step` on each; the law moves once per optimiser step, on
            their mean, and every micro-batch of a step is given the same weight. `step(kl, last=True)` ends a shorter
            one, such as the last of an epoch.
        sync_ranks: average the measurement over `torch.distributed` ranks where a process group is up, so that every
            rank ends with the same weight. Every rank must then make the call.
        delayed: give each batch the weight that the batches before it led to, not its own. So a loop that knows the KL
            only after its backward pass behaves; the released program for text is one.
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
        laws = [law] if isinstance(law, Law) else list(law) if isinstance(law, Sequence) else []
        if not laws or not all(isinstance(each, Law) for each in laws):
            raise TypeError(
                f"law must be a law such as PI(target=18.0) or a sequence of them, got {law!r}"
            )
        if not isinstance(law, Law) and models not in (None, len(laws)):
            raise ValueError(f"models={models} contradicts the {len(laws)} laws given")
        for count in (accumulate, 1 if models is None else models):
            if not isinstance(count, int) or count < 1:
                raise ValueError(
                    f"accumulate and models must be whole numbers from 1 up, got {accumulate} and {models}"
                )
        self.laws = tuple(laws) if models is None or not isinstance(law, Law) else (law,) * models
        self.models = models if isinstance(law, Law) else len(laws)
        self.accumulate = accumulate
        self.sync_ranks = sync_ranks
        self.delayed = (
            delayed or accumulate > 1
        )  # the first of several micro-batches cannot wait for the last
        self._groups = _runs_of_equal(self.laws)
        self._recordable = recordable(laws)
        self._floats: State | None = self.laws[0].initial() if self.models is None else None
        self._pending: Pending = (0.0, 0)  # on the float path
        # On the tensor path the state and the pending sum are one block (fields + 2, *shape): an update writes once.
        self._block: Tensor | None = None
        self._replay = Replay()

    def step(self, measured: Number, *, last: bool = False) -> Number:
        """Takes in what was measured on this batch, in nats per example, and returns the weight to use for it.

        `last` says that the optimiser steps after this micro-batch, though it has seen fewer than `accumulate`.
        """
        if isinstance(measured, Tensor):
            return self._step_tensor(measured, last)
        try:
            number = float(measured)
        except TypeError:
            wanted = (
                "a number or a tensor"
                if self.models is None
                else f"a tensor of shape ({self.models},)"
            )
            raise TypeError(
                f"measured must be {wanted}, nats per example, got {measured!r}"
            ) from None
        return self._step_float(number, last)

    def _step_float(self, measured: float, last: bool) -> float:
        if self.models is not None:
            raise TypeError(
                f"this controller holds {self.models} models: give it a tensor of shape ({self.models},)"
            )
        state = self._as_floats()
        if self.sync_ranks and _ranks() > 1:
            measured = _mean_over_ranks(torch.tensor(measured, dtype=torch.float64)).item()
        self._floats, self._pending, beta = self._moved(state, self._pending, measured, last)
        return beta

    def _moved(
        self, state: State, pending: Pending, measured: float, last: bool
    ) -> tuple[State, Pending, float]:
        """A step in Python numbers: the state after it, what is pending, and the weight."""
        total, count = pending[0] + measured, pending[1] + 1
        if count < self.accumulate and not last:
            return state, (total, count), state.beta
        new = self.laws[0].update(state, total / count, FLOATS)
        return new, (0.0, 0), state.beta if self.delayed else new.beta

    def _step_tensor(self, measured: Tensor, last: bool) -> Tensor:
        shape = () if self.models is None else (self.models,)
        if not measured.is_floating_point():
            raise TypeError(
                f"measured must be a tensor of floats, got {measured.dtype}: the weight comes back in its dtype"
            )
        if measured.shape != shape:
            raise ValueError(
                f"measured must have shape {shape}, got {tuple(measured.shape)}: sum KL over the latents and average "
                f"it over the batch; for several models at once, build Controller(law, models=N)"
            )
        block = self._as_block(measured.device)
        with torch.no_grad():
            value = measured.detach().to(block.dtype)
            if self.sync_ranks and _ranks() > 1:
                value = _mean_over_ranks(value)
            if self.models is None and (numbers := as_host_scalars(value, block)) is not None:
                number, held = numbers
                *now, total, count = held.tolist()
                new, pending, weight = self._moved(State(*now), (total, int(count)), number, last)
                held[:] = [*new, *pending]
                torch.autograd.graph.increment_version(block)  # a write that autograd did not see
                return cast_like(
                    torch.tensor(weight, dtype=block.dtype, device="cpu"), measured.dtype
                )
            how = GraphKey(bool(last), self.accumulate, self.delayed)
            if value.is_cuda and self._recordable and is_eager(value):
                beta = self._replay.advance(self._advance, block, value, how)
            else:
                beta = self._advance(block, value, how)
            return cast_like(beta, measured.dtype)

    def _advance(self, block: Tensor, value: Tensor, how: GraphKey) -> Tensor:
        """A step on tensors: moves the state in place and returns the weight."""
        last, accumulate, delayed = how
        old = State(*block[:-2].unbind(0))
        if accumulate == 1:
            new = self._update(old, value)
            beta = old.beta.clone() if delayed else new.beta
            block[:-2].copy_(torch.stack(new))
            return beta
        beta = old.beta.clone()
        total, count = block[-2] + value, block[-1] + 1
        full = (count >= accumulate) | last
        moved = torch.stack(
            [*self._update(old, total / count), torch.zeros_like(total), torch.zeros_like(count)]
        )
        kept = torch.stack([*old, total, count])
        block.copy_(torch.where(full, moved, kept))
        return beta

    def _update(self, state: State, measured: Tensor) -> State:
        if len(self._groups) == 1:
            return self.laws[0].update(state, measured, TENSORS)
        parts = [
            law.update(State(*(value[rows] for value in state)), measured[rows])
            for law, rows in self._groups
        ]
        return State(*(torch.cat(values) for values in zip(*parts, strict=True)))

    @property
    def state(self) -> State:
        """The state as it is: floats, or tensors that the next step overwrites. No host synchronisation."""
        if self._block is not None:
            return State(*self._block[:-2].unbind(0))
        return (
            self._as_floats()
            if self.models is None
            else State(*self._as_block(torch.device("cpu"))[:-2].unbind(0))
        )

    @property
    def beta(self) -> Any:
        """The weight in force: a float, or a float64 tensor after steps on tensors."""
        beta = self.state.beta
        with outside_inference_mode():
            return beta.clone() if isinstance(beta, Tensor) else beta

    @property
    def target(self) -> Any:
        """The set point in force, in the same kind as `beta`. None where every law is open-loop."""
        if all(law.open_loop for law in self.laws):
            return None
        target = self.state.target
        return target.clone() if isinstance(target, Tensor) else target

    def stats(self) -> dict[str, Any]:
        """Target, measured, error, p, i, beta and saturated, as plain numbers (lists for several models).

        Waits for the device: call it once per log line.
        """
        state = self.state
        if isinstance(state.beta, Tensor):
            state = State(*torch.stack(state).tolist())
        closed = not all(law.open_loop for law in self.laws)
        if self.models is None:
            saturated: Any = _saturated(self.laws[0], state.output)
        else:
            saturated = [
                _saturated(law, output) for law, output in zip(self.laws, state.output, strict=True)
            ]
        return {
            "target": state.target if closed else None,
            "measured": state.measured,
            "error": state.error if closed else None,
            "p": state.p,
            "i": state.i,
            "beta": state.beta,
            "saturated": saturated,
        }

    def set_target(self, target: float | Tensor, model: int | None = None) -> None:
        """Changes the set point from now on, without a bump in beta; a ramp ends here.

        One value, or one per model; or that of one model alone.
        """
        if model is not None and not 0 <= model < (self.models or 0):
            raise ValueError(
                f"there is no model {model}: this controller was built with models={self.models}"
            )
        laws = self.laws if model is None else (self.laws[model],)
        for law in laws:
            if not isinstance(law, Feedback):
                raise ValueError(f"{law} is open-loop: it has no target to set")
        if isinstance(target, Law | str):
            raise TypeError(
                f"target must be a number of nats, got {target!r}; a ramp is given to the law"
            )
        values = torch.as_tensor(target, dtype=torch.float64, device="cpu")
        if values.dim() > 1 or values.numel() not in (1, len(laws)):
            raise ValueError(
                f"one target, or one for each of {len(laws)} models, got shape {tuple(values.shape)}"
            )
        for law, value in zip(laws, values.expand(len(laws)).tolist(), strict=True):
            assert isinstance(law, Feedback)
            law.check_target(value)
        state = self.state
        if not isinstance(state.beta, Tensor):
            law = self.laws[0]
            assert isinstance(law, Feedback)
            self._floats = law.retarget(state, float(values), FLOATS)
            return
        values = values.to(state.beta.device, state.beta.dtype).expand(state.beta.shape)
        groups: list[tuple[Law, Any]] = (
            self._groups if self.models is not None else [(self.laws[0], ...)]
        )
        for law, rows in groups if model is None else [(self.laws[model], slice(model, model + 1))]:
            assert isinstance(law, Feedback)
            assert self._block is not None
            moved = law.retarget(State(*(value[rows] for value in state)), values[rows])
            self._block[:-2, rows].copy_(torch.stack(moved))

    def state_dict(self) -> dict[str, Any]:
        """Everything that moves, and a number for the kind of law. Floats, or tensors (copies) after steps on them."""
        moving: list[Any] = [
            *self.state,
            *self._pending,
        ]  # asked for its state, a vector of models has a block
        if self._block is not None:
            moving = [row.clone() for row in self._block]
        return {**dict(zip(_MOVING, moving, strict=True)), "law": self._which()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict()`, as if never stopped. Tensors already in use keep their addresses."""
        missing, extra = set(_MOVING) - set(saved) - _YOUNGER, set(saved) - {*_MOVING, "law"}
        if missing or extra:
            raise ValueError(
                f"not a controller's state: missing {sorted(missing)}, unknown {sorted(extra)}"
            )
        values = [saved[name] if name in saved else 0 * saved["beta"] for name in _MOVING]
        if self.accumulate == 1:  # what is pending waits for micro-batches that will not come
            values[-2:] = [0 * value for value in values[-2:]]
        shape = () if self.models is None else (self.models,)
        if any(tuple(getattr(value, "shape", ())) != shape for value in values):
            raise ValueError(
                f"the saved state has shape {tuple(getattr(values[0], 'shape', ()))}, expected {shape}"
            )
        own = torch.as_tensor(self._which(), device="cpu")
        if not torch.equal(torch.as_tensor(saved.get("law", own), device="cpu").to(own.dtype), own):
            raise ValueError(
                f"the saved state is of another kind of law than {self!r}: its numbers mean other things"
            )
        if self._block is None and not isinstance(values[0], Tensor):
            self._floats, self._pending = (
                State(*map(float, values[:-2])),
                (float(values[-2]), int(values[-1])),
            )
            return
        stacked = torch.stack(
            [
                torch.as_tensor(value, device="cpu").double()
                if isinstance(value, Tensor)
                else torch.tensor(value, dtype=torch.float64, device="cpu")
                for value in values
            ]
        )
        if self._block is None:
            self._block = _storable(stacked, values[0].device)
        else:
            self._block.copy_(stacked)

    def to(self, device: torch.device | str) -> "Controller":
        """Moves the state to a device before the first step, so that a graph captured around it finds it there."""
        device = torch.device(device)
        if (
            device.type == "cuda" and device.index is None
        ):  # else the same device would look like another one
            device = torch.device("cuda", torch.cuda.current_device())
        self._as_block(device)
        return self

    def _which(self) -> float | Tensor:
        """The kind of each law, as a number that float32 holds too."""
        numbers = [float(crc32(type(law).__name__.encode()) % (1 << 24)) for law in self.laws]
        return (
            numbers[0]
            if self.models is None
            else torch.tensor(numbers, dtype=torch.float64, device="cpu")
        )

    def _as_floats(self) -> State:
        if (
            self._block is not None
        ):  # a loop that went from tensors to floats; rare, and the host has the number anyway
            *state, total, count = self._block.tolist()
            self._floats, self._pending, self._block = State(*state), (total, int(count)), None
        assert self._floats is not None
        return self._floats

    def _as_block(self, device: torch.device) -> Tensor:
        if self._block is None:
            if self.models is None:
                assert self._floats is not None
                rows: list[Any] = [*self._floats, *self._pending]
            else:
                rows = list(zip(*([*law.initial(), 0.0, 0.0] for law in self.laws), strict=True))
            block = torch.tensor(rows, dtype=torch.float64, device="cpu")
            self._block = _storable(block, device)
        elif self._block.device != device:
            self._block = _storable(self._block, device)
        return self._block

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_replay": Replay()}  # a copy moves a state of its own

    def __setstate__(self, saved: dict[str, Any]) -> None:
        # Controllers that were pickled before there was a replay, or with another one, take these two as they are now.
        self.__dict__.update(
            {**saved, "_replay": Replay(), "_recordable": recordable(saved["laws"])}
        )

    def __repr__(self) -> str:
        laws = repr(self.laws[0]) if len(self._groups) == 1 else repr(list(self.laws))
        usual = {
            "models": None,
            "accumulate": 1,
            "sync_ranks": True,
            "delayed": self.accumulate > 1,
        }
        words = [
            laws,
            *(
                f"{name}={getattr(self, name)}"
                for name in usual
                if getattr(self, name) != usual[name]
            ),
        ]
        if self._block is not None:
            _, _, held, target, *_ = self._block.tolist()
        else:
            held, target = (self._floats.held, self._floats.target) if self._floats else (0.0, None)
        moved = held if isinstance(held, float) else any(held)
        return f"Controller({', '.join(words)}{f', target moved to {target}' if moved else ''})"


def _storable(block: Tensor, device: torch.device | None = None) -> Tensor:
    """The state block where it will live."""
    device = block.device if device is None else device
    with outside_inference_mode():
        return block.to(widest_float(device)).to(device).contiguous().clone()


def as_host_scalars(value: Tensor, block: Tensor) -> tuple[float, Any] | None:
    """A measurement as a number and the state as an array over its own memory; None where operations are recorded.

    A law's many operations on tensors of one number cost forty times what they cost on numbers.
    """
    if value.device.type != "cpu" or not is_eager(value):
        return None
    try:
        return float(value.numpy()), block.numpy()
    except (RuntimeError, TypeError):  # no NumPy
        return None


def cast_like(beta: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in the loss's own type; the largest there is where float16 would make it infinite."""
    return (beta.clamp(max=torch.finfo(dtype).max) if dtype == torch.float16 else beta).to(
        dtype, copy=True
    )


def _runs_of_equal(laws: Sequence[Law]) -> list[tuple[Law, slice]]:
    """Neighbours under the same law are updated together: [(law, the rows of its models)]."""
    groups: list[tuple[Law, slice]] = []
    for row, law in enumerate(laws):
        if groups and groups[-1][0] == law:
            groups[-1] = (law, slice(groups[-1][1].start, row + 1))
        else:
            groups.append((law, slice(row, row + 1)))
    return groups


def _saturated(law: Law, output: float) -> bool:
    low, high = law.bounds
    return not low <= output <= high


def _ranks() -> int:
    return dist.get_world_size() if _HAS_DISTRIBUTED and dist.is_initialized() else 1


def _mean_over_ranks(value: Tensor) -> Tensor:
    """NaN on one rank is NaN on all: every rank then skips the same measurement."""
    home = value.device
    if dist.get_backend() == "nccl":
        value = value.cuda()
    total = value.clone()
    dist.all_reduce(total)
    return (total / _ranks()).to(home)
