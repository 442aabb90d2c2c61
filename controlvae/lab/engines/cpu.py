"""The host's memory, kept for the next step instead of handed back to the system."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # glibc's names for them in malloc.h


def keep_freed_memory() -> None:
    """Asks glibc to reuse large blocks: else every map of every step is fetched anew, page fault by page fault.

    Worth a quarter of a training step on two cores. Does nothing where the C library is another one.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, 1 << 30)
            mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """For steps made of many tiny operations, such as a small LSTM's, one after the other.

    Shared among threads each of them waits for all; beside another busy process that made such steps a hundred times
    slower on two cores, and alone it gains nothing.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
