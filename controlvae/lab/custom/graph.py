"""CUDA graphs of user-supplied models' steps: captured if that gives the eager numbers."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from controlvae.lab.custom.batches import iter_tensors, map_tensors
from controlvae.lab.custom.failures import summarise
from controlvae.lab.custom.noise import Noise
from controlvae.lab.custom.trainer import CustomTrainer
from controlvae.lab.engines.measurements import row_width

_WARM_UP_STEPS = 3  # eager steps of each batch shape before its capture
_VERIFIED_STEPS = 2  # captured steps that are compared with eager ones
_MAX_GRAPHS = 8  # batch shapes with a captured graph
_MAX_CHUNK, _MAX_CHUNK_VALUES = 256, 1 << 24  # steps whose inputs are on the device at a time
_ROW_TOLERANCE = 1e-3
_UPDATE_TOLERANCE = 0.2  # of the norm of the weights' change; sums are in another order
_PLAIN_TYPES = (int, float, bool, str)


class StepInputs:
    """Inputs of a captured step on the device, at addresses that do not change.

    A feed that gathers batches by index has the indices and the noise of many steps there, and a
    counter: the captured step reads its own and writes its own row. The host then only replays. Of
    another feed, the host writes each batch.

    Args:
        trainer: Trainer of the steps.
    """

    def __init__(self, trainer: CustomTrainer) -> None:
        self.trainer = trainer
        training, device = trainer.experiment.training, trainer.device
        self.resident = trainer.gathers_by_index
        values = training.batch * max(1, trainer.vae.latents if trainer.draws_latents else 1)
        self.chunk = max(16, min(_MAX_CHUNK, _MAX_CHUNK_VALUES // values))
        width = row_width(trainer.experiment)
        self.rows = torch.zeros(self.chunk, width, dtype=torch.float64, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        if self.resident:
            self.indices = torch.zeros(self.chunk, training.batch, dtype=torch.int64, device=device)
        if self.resident and trainer.draws_latents:
            self.noise = torch.zeros(self.chunk, training.batch, trainer.vae.latents, device=device)

    def start(self, first: int, steps: int) -> None:
        """Write the inputs of at most `chunk` steps where the captured step reads them."""
        self.trainer.start(first, steps)
        self.counter.zero_()
        if self.resident:
            self.indices[:steps].copy_(self.trainer.feed.indices)  # type: ignore[attr-defined]
            if self.trainer.draws_latents:
                self.noise[:steps].copy_(self.trainer.chunk_noise)

    def take_step(self) -> None:
        """Take the step that the counter points to. It may be captured."""
        trainer = self.trainer
        indices = self.indices.index_select(0, self.counter)[0]
        batch = trainer.convert(trainer.feed.gather(indices))  # type: ignore[attr-defined]
        noise: Tensor | Noise = Noise(trainer.device, trainer.vae.dtype)
        if trainer.draws_latents:
            noise = self.noise.index_select(0, self.counter)[0]
        self.write_row(trainer.step(batch, noise))

    def write_row(self, row: Tensor) -> None:
        """Write the measurements of a step, and advance the counter."""
        self.rows.index_copy_(0, self.counter, row.unsqueeze(0))
        self.counter.add_(1)


class _CapturedStep(NamedTuple):
    """Graph of a step, and its batch and noise if the host writes them."""

    graph: "torch.cuda.CUDAGraph"
    batch: Any = None
    noise: Tensor | Noise | None = None


class GraphedTrainer:
    """A trainer on a GPU whose steps are captured after a warm-up and replayed.

    The first captured steps are compared with eager ones from the same state. A step that cannot
    be captured, or whose numbers differ, is trained operation by operation, with one line that
    says why.

    Args:
        trainer: Trainer on a GPU.
        note: Receives the line.
    """

    def __init__(self, trainer: CustomTrainer, note: Callable[[str], None]) -> None:
        self.trainer, self.note = trainer, note
        self.inputs = StepInputs(trainer)
        self.stream = torch.cuda.Stream(trainer.device)
        self.eager_reason: str | None = None  # why nothing is captured
        self.uses_generator = False
        # Graphs on several streams must not share the seed that they read on the device.
        self.generator = torch.cuda.default_generators[self.stream.device.index]
        self.generator_state = self.generator.clone_state()
        self.reset()

    def reset(self) -> None:
        """Discard all graphs: tensors they read, such as the controller's, may have moved."""
        self.captured: dict[str, _CapturedStep] = {}
        self.steps_taken: dict[str, int] = {}
        self.verified = 0
        self.pool = torch.cuda.graph_pool_handle()

    @property
    def is_ready(self) -> bool:
        """True if the host has nothing to do for a step but to replay its graph."""
        return (
            self.inputs.resident
            and "" in self.captured
            and self.verified >= _VERIFIED_STEPS
            and self.eager_reason is None
        )

    def step(self, number: int) -> None:
        """Take one step. Its measurements are written to the rows of `inputs`."""
        with torch.cuda.stream(self.stream):
            self.generator.graphsafe_set_state(self.generator_state)
            if self.is_ready:
                self.trainer.prepare(number)
                self.captured[""].graph.replay()
                return
            batch, noise = self.trainer.load(number)
            if self.eager_reason is not None:
                self.inputs.write_row(self.trainer.step(batch, noise))
                return
            shape = "" if self.inputs.resident else _shape_key(batch)
            taken = self.steps_taken[shape] = self.steps_taken.get(shape, 0) + 1
            if taken <= _WARM_UP_STEPS:
                row = self._warm_up(number, batch, noise, strict=taken == _WARM_UP_STEPS)
                self.inputs.write_row(row)
            elif shape not in self.captured and not self._capture(shape, batch, noise):
                self.trainer.seeds.start(number)
                self.inputs.write_row(self.trainer.step(batch, noise))
            elif self.verified < _VERIFIED_STEPS:
                self._verify(number, self.captured[shape], batch, noise)
            else:
                self._replay(self.captured[shape], batch, noise)

    def _warm_up(self, number: int, batch: Any, noise: Tensor | Noise, strict: bool) -> Tensor:
        """Take an eager step, and find out what would make a captured one wrong."""
        if not strict:
            return self._first_step(number, batch, noise)
        attributes = _plain_attributes(self.trainer.vae.module)
        before = _clone(self._state())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the mode a prototype
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
            self.trainer.seeds.start(number)
            return self.trainer.step(batch, noise)
        self.uses_generator = self.generator.get_offset() > 0
        changed = attributes.items() ^ _plain_attributes(self.trainer.vae.module).items()
        if changed:
            names = ", ".join(sorted({name for name, _ in changed})[:3])
            self._use_eager(f"the model changes plain attributes in a step ({names})")
        if not getattr(self.trainer.optimiser, "capturable", True):
            self._use_eager("this optimiser has no capturable form")
        return row

    def _first_step(self, number: int, batch: Any, noise: Tensor | Noise) -> Tensor:
        """Take an eager step, without compilation if the compiled one fails."""
        loss_function = self.trainer.loss_function
        if not loss_function.is_compiled:
            return self.trainer.step(batch, noise)
        before = _clone(self._state())
        try:
            return self.trainer.step(batch, noise)
        except (RuntimeError, AssertionError) as error:  # in the backward pass
            loss_function.stop_compiling(summarise(error))
        _write(self._state(), before)
        self.trainer.seeds.start(number)
        return self.trainer.step(batch, noise)

    def _capture(self, shape: str, batch: Any, noise: Tensor | Noise) -> bool:
        """Capture the step of a batch shape. Return whether that succeeded."""
        if len(self.captured) >= _MAX_GRAPHS:
            self._use_eager(f"the batches have more than {_MAX_GRAPHS} shapes")
            return False
        captured = _CapturedStep(torch.cuda.CUDAGraph())
        if not self.inputs.resident:
            drawn = noise.clone() if isinstance(noise, Tensor) else noise
            captured = captured._replace(batch=map_tensors(batch, torch.clone), noise=drawn)
        before = _clone(self._state())
        self.stream.synchronize()
        try:
            # Threads of a loader pin memory at the same time: only this thread is checked.
            with torch.cuda.graph(
                captured.graph, self.pool, self.stream, capture_error_mode="thread_local"
            ):
                self._captured_step(captured)
        except (RuntimeError, ValueError, TypeError) as error:
            torch.cuda.synchronize()
            # A broken capture leaves its generator in capture mode.
            self.generator_state = self.generator.clone_state()
            self.generator.graphsafe_set_state(self.generator_state)
            reason = str(error).strip().splitlines()[0][:120]
            self._use_eager(f"the step cannot be captured ({reason})")
            _write(self._state(), before)
            return False
        self.captured[shape] = captured
        return True

    def _captured_step(self, captured: _CapturedStep) -> None:
        if self.inputs.resident:
            self.inputs.take_step()
        else:
            assert captured.noise is not None
            self.inputs.write_row(self.trainer.step(captured.batch, captured.noise))

    def _verify(
        self, number: int, captured: _CapturedStep, batch: Any, noise: Tensor | Noise
    ) -> None:
        """Take the step both ways from one state. Continue with the captured one if they agree."""
        before = _clone(self._state())
        position = int(self.inputs.counter)
        self.trainer.seeds.start(number)
        with self.trainer.loss_function.uncompiled():
            expected = self.trainer.step(batch, noise).clone()
        after = _clone(self._state())
        _write(self._state(), before)
        self.trainer.seeds.start(number)
        self._replay(captured, batch, noise)
        row, state, weights = self.inputs.rows[position], self._state(), self._weight_names()
        agrees = torch.allclose(row, expected, rtol=_ROW_TOLERANCE, atol=_ROW_TOLERANCE)
        change = torch.stack([(after[n] - before[n]).float().norm() for n in weights]).norm()
        gap = torch.stack([(after[n] - state[n]).float().norm() for n in weights]).norm()
        if agrees and bool(gap <= _UPDATE_TOLERANCE * change + 1e-12):
            self.verified += 1
            return
        _write(self._state(), after)
        row.copy_(expected)
        if self.trainer.loss_function.is_compiled:
            self.trainer.loss_function.stop_compiling("its numbers differ from uncompiled ones")
            self.reset()
        else:
            self._use_eager("a captured step gave other numbers than an eager one")

    def _replay(self, captured: _CapturedStep, batch: Any, noise: Tensor | Noise) -> None:
        if not self.inputs.resident:
            pairs = zip(iter_tensors(captured.batch), iter_tensors(batch), strict=True)
            for (_, into), (_, source) in pairs:
                into.copy_(source)
            if isinstance(captured.noise, Tensor) and isinstance(noise, Tensor):
                captured.noise.copy_(noise)
        captured.graph.replay()

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
        return [f"model.{name}" for name, _ in self.trainer.vae.module.named_parameters()]


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
