"""Random measurements and a comparison of laws with references that tests of laws share."""

import math
import random

import pytest
import torch

import controlvae as cv


def random_trace(seed, length=300):
    """Return a KL that starts near zero, overshoots and fluctuates, with unusable values in it."""
    random_numbers = random.Random(seed)
    values = [random_numbers.uniform(0, 2) for _ in range(length // 3)] + [
        random_numbers.uniform(0, 60) for _ in range(length)
    ]
    for _ in range(6):
        values[random_numbers.randrange(1, len(values))] = random_numbers.choice(
            [math.nan, math.inf, -math.inf]
        )
    return values


def assert_law_agrees(law, reference, seeds=range(2), rel=1e-12):
    """Assert that floats and tensors give the weights that `reference(trace)` returns."""
    for seed in seeds:
        trace = random_trace(seed)
        expected = reference(trace)
        by_float, by_tensor = cv.Controller(law), cv.Controller(law)
        floats = [by_float.step(x) for x in trace]
        assert floats == pytest.approx(expected, rel=rel, abs=rel)
        tensors = [by_tensor.step(torch.tensor(x, dtype=torch.float64)) for x in trace]
        assert torch.stack(tensors).tolist() == pytest.approx(expected, rel=rel, abs=rel)
