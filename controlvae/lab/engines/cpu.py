"""CPU settings for training: memory allocation and threads."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # option numbers in glibc's malloc.h


def keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks instead of returning them to the system.

    Without it every activation of every step is allocated again, page fault by page fault, which
    takes a quarter of a training step on two cores. Does nothing with another C library.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, 1 << 30)
            mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch on one thread within this context.

    For steps of many tiny sequential operations, such as those of a small LSTM. With several
    threads each operation waits for all of them: next to another busy process such steps took a
    hundred times longer on two cores, and on an idle machine they gained nothing.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
