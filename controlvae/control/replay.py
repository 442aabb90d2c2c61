"""A controller's update on a GPU as one graph, so that its many small operations are launched as one."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from controlvae.control.arithmetic import lasting

Advance = Callable[[Tensor, Tensor, bool], Tensor]  # state, measurement, whether a window ends here: the weight
_PLAIN = 8  # updates before one is recorded: a loop that lasts no longer gains nothing, and kernels are loaded by then


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    state: Tensor
    measured: Tensor
    weight: Tensor


class Replay:
    """Moves a state on a GPU; after a few updates by replaying one.

    The weight that comes back is overwritten by the next update. Where an update cannot be recorded, as one that asks
    the device for a number, all are made one operation at a time.
    """

    def __init__(self) -> None:
        self._recorded: dict[bool, _Recorded | None] = {}
        self._plain = 0

    def advance(self, how: Advance, state: Tensor, measured: Tensor, last: bool) -> Tensor:
        if self._plain < _PLAIN:
            self._plain += 1
            return how(state, measured, last)
        recorded = self._recorded.get(last)
        if last not in self._recorded or (recorded is not None and recorded.state is not state):
            recorded = self._recorded[last] = _record(how, state, measured, last)
        if recorded is None:
            return how(state, measured, last)
        recorded.measured.copy_(measured)
        recorded.graph.replay()
        torch.autograd.graph.increment_version(state)  # a write that autograd did not see
        return recorded.weight


def _record(how: Advance, state: Tensor, measured: Tensor, last: bool) -> _Recorded | None:
    """On a stream of its own, and heedless of what other threads do, such as those that load data."""
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(state.device)
    stream = torch.cuda.Stream(state.device)
    stream.wait_stream(before)
    try:
        with lasting(), torch.cuda.stream(stream):
            measured = measured.clone()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                weight = how(state, measured, last)
            finally:
                graph.capture_end()
    except RuntimeError:
        return None
    before.wait_stream(stream)
    return _Recorded(graph, state, measured, weight)


def at_once(value: Tensor) -> bool:
    """Whether operations on it happen as they are called: nothing compiles, traces, captures or transforms them."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_in_torch_dispatch_mode():
        return False
    try:
        value.data_ptr()
    except RuntimeError:  # a tensor without memory of its own, as inside torch.func
        return False
    return value.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
