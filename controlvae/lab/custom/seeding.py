"""Temporary seeds of all global generators, for data whose transforms draw random numbers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from controlvae.lab.data.batch_order import stream_key

_DATA_STREAM = 1 << 44  # random stream of data number 0


@contextmanager
def seeded(seed: int, number: int) -> Iterator[int]:
    """Seed torch, Python and NumPy within this context, and restore them afterwards.

    Args:
        seed: Seed of the run.
        number: Number of the random stream, such as a step or an epoch.

    Yields:
        The key that the generators were seeded with.
    """
    key = stream_key(seed, _DATA_STREAM + number)
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        random.seed(key)
        np.random.seed(key % 2**32)
        try:
            yield key
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
