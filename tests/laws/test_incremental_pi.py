"""Tests of `IncrementalPI` against the recursion of DynamicVAE."""

import math

import pytest
import twin
from law_traces import assert_law_agrees

import controlvae as cv


def incremental_pi(trace, target, kp, ki, low, high, start, ema):
    beta, last_error, betas = start, 0.0, []
    for x in twin.moving_average(trace, ema):
        if x is not None:
            error = target - x
            change = twin.sigmoid_of_negative(error) - twin.sigmoid_of_negative(last_error)
            beta = min(max(beta + kp * change - ki * error, low), high)
            last_error = error
        betas.append(beta)
    return betas


@pytest.mark.parametrize(
    ("low", "high", "start", "ema"), [(0.1, math.inf, 50.0, 2 / 3), (0.1, 0.8, 0.5, 0.0)]
)
def test_law_is_the_recursion_of_the_paper(low, high, start, ema):
    law = cv.IncrementalPI(18.0, 0.5, 0.005, low, high, start, ema)
    assert_law_agrees(
        law, lambda trace: incremental_pi(trace, 18.0, 0.5, 0.005, low, high, start, ema)
    )


def test_law_leaves_its_bound_at_once():
    control = cv.Controller(cv.IncrementalPI(18.0, beta_init=0.2, ema=0.0))
    for _ in range(10_000):
        control.step(2.0)
    assert control.beta == pytest.approx(0.1)
    assert control.step(19.0) > 0.1


def test_initial_weight_is_required():
    with pytest.raises(ValueError, match="beta_init"):
        cv.IncrementalPI(18.0, beta_init=None)
