"""CUDA graph of a controller's update, which launches its many small kernels as one."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from controlvae.laws.backend import outside_inference_mode
from controlvae.laws.base import Law

# Updates before the first capture. A shorter loop would gain nothing, and all kernels are loaded
# by then.
_EAGER_UPDATES = 8
# A capture allocates its own memory and cannot make torch release cached blocks.
_MIN_FREE_BYTES = 64 << 20
# A state that moves to a new address more often than this is not worth capturing.
_MAX_CAPTURES = 8


class GraphKey(NamedTuple):
    """Options that change what an update does. Each combination is captured separately."""

    last: bool  # this micro-batch ends the optimiser step, even if the window is not full
    accumulate: int  # micro-batches per optimiser step
    delayed: bool  # return the weight of the previous step
    folds: bool = False  # the monitor's block of measurements may be full


# Updates the state in place by a measurement and returns the weight.
Update = Callable[[Tensor, Tensor, GraphKey], Tensor]


class CapturedUpdate(NamedTuple):
    """CUDA graph of an update, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    state: Tensor
    measured: Tensor
    weight: Tensor


class GraphReplay:
    """Runs updates on a GPU: the first few eagerly, later ones by replaying a CUDA graph.

    The next update overwrites the returned weight.
    """

    def __init__(self) -> None:
        self._captured: dict[GraphKey, CapturedUpdate] = {}
        self._eager_updates = self._captures = 0

    def advance(self, update: Update, state: Tensor, measured: Tensor, key: GraphKey) -> Tensor:
        """Update the state in place and return the weight.

        Args:
            update: Function to run or replay.
            state: State tensor on a GPU.
            measured: Measurement on the same GPU.
            key: Options of the update.
        """
        captured = self._captured.get(key)
        if captured is None or captured.state is not state:
            if self._eager_updates < _EAGER_UPDATES or self._captures == _MAX_CAPTURES:
                self._eager_updates += 1
                return update(state, measured, key)
            captured = capture_update(update, state, measured, key)
            if captured is None:
                self._captures = _MAX_CAPTURES  # do not try again
                return update(state, measured, key)
            self._captures += 1
            self._captured[key] = captured
        captured.measured.copy_(measured)
        captured.graph.replay()
        torch.autograd.graph.increment_version(state)  # autograd did not see the write
        return captured.weight


def capture_update(
    update: Update, state: Tensor, measured: Tensor, key: GraphKey
) -> CapturedUpdate | None:
    """Capture an update on a side stream, or return None if the GPU has too little free memory.

    The capture ignores CUDA calls of other threads, such as data loaders.

    Args:
        update: Function to capture.
        state: State tensor that the graph will read and write.
        measured: Example of a measurement.
        key: Options of the update.
    """
    if torch.cuda.mem_get_info(state.device)[0] < _MIN_FREE_BYTES:
        return None
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(state.device)
    stream = torch.cuda.Stream(state.device)
    stream.wait_stream(current)
    with outside_inference_mode(), torch.cuda.stream(stream):
        measured = measured.clone()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            weight = update(state, measured, key)
        finally:
            graph.capture_end()
    current.wait_stream(stream)
    return CapturedUpdate(graph, state, measured, weight)


def is_capturable(laws: Iterable[Law]) -> bool:
    """Return True if all laws and their target schedules belong to this package.

    Those consist of tensor operations alone. A user-supplied law may read a number from the device.
    A failed capture would leave torch's allocator unable to capture again, so none is tried.
    """
    parts = [
        part
        for law in laws
        for part in (law, getattr(law, "target", None))
        if isinstance(part, Law)
    ]
    return all(type(part).__module__.startswith(f"{__package__}.") for part in parts)


def is_eager(value: Tensor) -> bool:
    """Return True if operations on `value` run at once.

    They do not while torch compiles, traces, captures or transforms them.
    """
    if not is_concrete(value):
        return False
    return value.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def is_concrete(value: Tensor) -> bool:
    """Return True if `value` has memory that a kernel can read.

    It has none while torch compiles, traces or transforms operations.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_in_torch_dispatch_mode():
        return False
    try:
        value.data_ptr()
    except RuntimeError:  # a tensor without storage, as inside torch.func
        return False
    return True
