"""Memory allocation on a CPU."""

import ctypes
import sys

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
