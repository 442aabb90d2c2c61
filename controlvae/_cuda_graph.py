"""A controller's update on a GPU as one graph, so that its many small operations are launched as one."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from controlvae.laws.backend import outside_inference_mode
from controlvae.laws.base import Law

_PLAIN = 8  # updates before one is recorded: a loop that lasts no longer gains nothing, and kernels are loaded by then
_ROOM = (
    64 << 20
)  # bytes: a recording takes memory of its own, and cannot ask torch to give back what it keeps
_RECORDINGS = 8  # a state that moves to another place more often than that is not worth recording


class GraphKey(NamedTuple):
    """What an update does differently from call to call; each way is recorded by itself."""

    last: bool  # an optimiser step ends with this micro-batch, however few it has seen
    accumulate: int  # micro-batches in one
    delayed: bool  # the weight is that of the batches before


Update = Callable[
    [Tensor, Tensor, GraphKey], Tensor
]  # moves the state by a measurement, returns the weight


class Recorded(NamedTuple):
    """An update, where it reads and writes."""

    graph: torch.cuda.CUDAGraph
    state: Tensor
    measured: Tensor
    weight: Tensor


class Replay:
    """Moves a state on a GPU; after a few updates by replaying one.

    The weight that comes back is overwritten by the next update.
    """

    def __init__(self) -> None:
        self._recorded: dict[GraphKey, Recorded] = {}
        self._plain = self._recordings = 0

    def advance(self, update: Update, state: Tensor, measured: Tensor, how: GraphKey) -> Tensor:
        recorded = self._recorded.get(how)
        if recorded is None or recorded.state is not state:
            if self._plain < _PLAIN or self._recordings == _RECORDINGS:
                self._plain += 1
                return update(state, measured, how)
            recorded = record(update, state, measured, how)
            if recorded is None:
                self._recordings = _RECORDINGS  # not to be tried again
                return update(state, measured, how)
            self._recordings += 1
            self._recorded[how] = recorded
        recorded.measured.copy_(measured)
        recorded.graph.replay()
        torch.autograd.graph.increment_version(state)  # a write that autograd did not see
        return recorded.weight


def record(update: Update, state: Tensor, measured: Tensor, how: GraphKey) -> Recorded | None:
    """On a stream of its own, and heedless of what other threads do, such as those that load data.

    None where a full card has no room for it.
    """
    if torch.cuda.mem_get_info(state.device)[0] < _ROOM:
        return None
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(state.device)
    stream = torch.cuda.Stream(state.device)
    stream.wait_stream(before)
    with outside_inference_mode(), torch.cuda.stream(stream):
        measured = measured.clone()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            weight = update(state, measured, how)
        finally:
            graph.capture_end()
    before.wait_stream(stream)
    return Recorded(graph, state, measured, weight)


def recordable(laws: Iterable[Law]) -> bool:
    """Whether all of them, and the ramps of their targets, are laws of this package.

    Those are operations on tensors and nothing else. A law of a user's own may ask the device for a number, and a
    recording that fails leaves torch's allocator unfit for any further one: so it is not begun.
    """
    parts = [
        part
        for law in laws
        for part in (law, getattr(law, "target", None))
        if isinstance(part, Law)
    ]
    return all(type(part).__module__.startswith(f"{__package__}.") for part in parts)


def is_eager(value: Tensor) -> bool:
    """Whether operations on it happen as they are called: nothing compiles, traces, captures or transforms them."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_in_torch_dispatch_mode():
        return False
    try:
        value.data_ptr()
    except RuntimeError:  # a tensor without memory of its own, as inside torch.func
        return False
    return value.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
