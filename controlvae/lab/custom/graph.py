"""CUDA graphs of a user-supplied model's step: captured if that gives the eager numbers."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae.lab.custom.batches import iter_tensors, map_tensors
from controlvae.lab.custom.noise import Noise
from controlvae.lab.custom.trainer import CustomTrainer

_WARM_UP_STEPS = 3  # eager steps of each batch shape before its capture
_VERIFIED_STEPS = 2  # captured steps that are compared with eager ones
_MAX_GRAPHS = 8  # batch shapes with a graph of their own
_ROW_TOLERANCE = 1e-3
_UPDATE_TOLERANCE = 0.2  # of the norm of the weights' change; sums are in another order
_PLAIN_TYPES = (int, float, bool, str)


class _CapturedStep(NamedTuple):
    """Graph of a step, its inputs, and its row of measurements."""

    graph: "torch.cuda.CUDAGraph"
    batch: Any
    noise: Tensor | Noise
    row: Tensor


class GraphedTrainer:
    """A trainer on a GPU whose steps are captured after a warm-up and replayed.

    The first captured steps are compared with eager ones from the same state. A step that cannot
    be captured, or whose numbers differ, is trained operation by operation, with one line that
    says why.

    Args:
        trainer: Trainer on a GPU.
        note: Receives the line.
        stream: Stream of the steps.
    """

    def __init__(
        self,
        trainer: CustomTrainer,
        note: Callable[[str], None],
        stream: "torch.cuda.Stream | None" = None,
    ) -> None:
        self.trainer, self.note = trainer, note
        self.stream = stream or torch.cuda.Stream(trainer.device)
        self.eager_reason: str | None = None  # why nothing is captured
        self.uses_generator = False
        self.reset()

    def reset(self) -> None:
        """Discard all graphs: tensors they read, such as the controller's, may have moved."""
        self.captured: dict[str, _CapturedStep] = {}
        self.steps_taken: dict[str, int] = {}
        self.verified = 0
        self.pool = torch.cuda.graph_pool_handle()

    def step(self, number: int, row: Tensor) -> None:
        """Take one step and write its measurements to `row`, (columns,)."""
        with torch.cuda.stream(self.stream):
            batch, noise = self.trainer.load(number)
            if self.eager_reason is not None:
                row.copy_(self.trainer.step(batch, noise))
                return
            shape = _shape_key(batch)
            taken = self.steps_taken[shape] = self.steps_taken.get(shape, 0) + 1
            if taken <= _WARM_UP_STEPS:
                row.copy_(self._warm_up(batch, noise, strict=taken == _WARM_UP_STEPS))
                return
            if shape not in self.captured and not self._capture(number, shape, batch, noise):
                self.trainer.seeds.start(number)
                row.copy_(self.trainer.step(batch, noise))
                return
            captured = self.captured[shape]
            if self.verified < _VERIFIED_STEPS:
                row.copy_(self._verify(number, captured, batch, noise))
                return
            row.copy_(self._replay(captured, batch, noise))

    def _warm_up(self, batch: Any, noise: Tensor | Noise, strict: bool) -> Tensor:
        """Take an eager step, and find out what would make a captured one wrong."""
        if not strict:
            return self.trainer.step(batch, noise)
        generator = torch.cuda.default_generators[self.stream.device.index]
        attributes = _plain_attributes(self.trainer.vae.module)
        before = _clone(self._state())
        torch.cuda.set_sync_debug_mode("error")
        try:
            row = self.trainer.step(batch, noise)
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            self._use_eager("the model reads values from the GPU in a step")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if self.eager_reason is not None:  # the step broke off
            _write(self._state(), before)
            return self.trainer.step(batch, noise)
        self.uses_generator = generator.get_offset() > 0
        changed = attributes.items() ^ _plain_attributes(self.trainer.vae.module).items()
        if changed:
            names = ", ".join(sorted({name for name, _ in changed})[:3])
            self._use_eager(f"the model changes plain attributes in a step ({names})")
        optimiser = self.trainer.optimiser
        if not getattr(optimiser, "capturable", True):
            self._use_eager("this optimiser has no capturable form")
        return row

    def _capture(self, number: int, shape: str, batch: Any, noise: Tensor | Noise) -> bool:
        """Capture the step of a batch shape. Return whether that succeeded."""
        if len(self.captured) >= _MAX_GRAPHS:
            self._use_eager(f"the batches have more than {_MAX_GRAPHS} shapes")
            return False
        inputs = map_tensors(batch, torch.clone)
        drawn = noise.clone() if isinstance(noise, Tensor) else noise
        graph, before = torch.cuda.CUDAGraph(), _clone(self._state())
        self.stream.synchronize()
        try:
            with torch.cuda.graph(graph, self.pool, self.stream):
                row = self.trainer.step(inputs, drawn)
        except (RuntimeError, ValueError, TypeError) as error:
            torch.cuda.synchronize()
            reason = str(error).strip().splitlines()[0][:120]
            self._use_eager(f"the step cannot be captured ({reason})")
            _write(self._state(), before)
            return False
        self.captured[shape] = _CapturedStep(graph, inputs, drawn, row)
        return True

    def _verify(
        self, number: int, captured: _CapturedStep, batch: Any, noise: Tensor | Noise
    ) -> Tensor:
        """Take the step both ways from one state. Continue with the captured one if they agree."""
        state = self._state()
        before = _clone(state)
        expected = self.trainer.step(batch, noise).clone()
        after = _clone(self._state())
        _write(self._state(), before)
        self.trainer.seeds.start(number)
        row = self._replay(captured, batch, noise).clone()
        weights = self._weight_names()
        agrees = torch.allclose(row, expected, rtol=_ROW_TOLERANCE, atol=_ROW_TOLERANCE)
        state = self._state()
        change = torch.stack([(after[n] - before[n]).float().norm() for n in weights]).norm()
        gap = torch.stack([(after[n] - state[n]).float().norm() for n in weights]).norm()
        if agrees and bool(gap <= _UPDATE_TOLERANCE * change + 1e-12):
            self.verified += 1
            return row
        self._use_eager("a captured step gave other numbers than an eager one")
        _write(self._state(), after)
        return expected

    def _replay(self, captured: _CapturedStep, batch: Any, noise: Tensor | Noise) -> Tensor:
        for (_, into), (_, source) in zip(
            iter_tensors(captured.batch), iter_tensors(batch), strict=True
        ):
            into.copy_(source)
        if isinstance(captured.noise, Tensor) and isinstance(noise, Tensor):
            captured.noise.copy_(noise)
        captured.graph.replay()
        return captured.row

    def _use_eager(self, reason: str) -> None:
        if self.eager_reason is None:
            self.note(f"training operation by operation: {reason}")
        self.eager_reason = reason
        self.captured.clear()

    def _state(self) -> dict[str, Tensor]:
        """Return all tensors that a step writes in place, by name."""
        trainer = self.trainer
        tensors = dict(trainer.optimiser.snapshot())
        tensors = {name: value for name, value in tensors.items() if value.is_cuda}
        tensors |= {f"ema.{name}": value for name, value in trainer.average.items()}
        block = trainer.control._block
        return tensors if block is None else {**tensors, "control": block}

    def _weight_names(self) -> list[str]:
        names = (f"model.{name}" for name, _ in self.trainer.vae.module.named_parameters())
        return list(names)


def _shape_key(batch: Any) -> str:
    return str([(path, tuple(t.shape), t.dtype) for path, t in iter_tensors(batch)])


def _clone(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


@torch.no_grad()
def _write(state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in state.items():
        if name in values:
            value.copy_(values[name])


def _plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Return the numbers, flags and texts that a module and its parts hold as attributes."""
    return {
        f"{path or type(module).__name__}.{name}": value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, _PLAIN_TYPES) and not name.startswith("_")
    }
