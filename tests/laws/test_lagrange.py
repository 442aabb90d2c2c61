"""Tests of the projected `LagrangeMultiplier`."""

import math

import pytest
from law_traces import assert_law_agrees

import controlvae as cv


def projected_ascent(trace, target, alpha, low, high):
    multiplier, multipliers = low, []
    for x in trace:
        if math.isfinite(x):
            multiplier = min(max(multiplier + alpha * (x - target), low), high)
        multipliers.append(multiplier)
    return multipliers


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (0.1, 0.4)])
def test_projection_is_the_textbook_update(low, high):
    law = cv.LagrangeMultiplier(18.0, alpha=5e-3, beta_min=low, beta_max=high, projected=True)
    assert_law_agrees(law, lambda trace: projected_ascent(trace, 18.0, 5e-3, low, high))


def test_anti_windup_keeps_what_a_projection_removes():
    trace = [20.0, 8.0, 19.0]  # the second step would end at -0.8
    projected = cv.Controller(cv.LagrangeMultiplier(18.0, alpha=0.1, projected=True))
    default = cv.Controller(cv.LagrangeMultiplier(18.0, alpha=0.1))
    assert [projected.step(x) for x in trace] == pytest.approx([0.2, 0.0, 0.1])
    assert [default.step(x) for x in trace] == pytest.approx([0.2, 0.0, 0.3])


def test_projection_replaces_anti_windup():
    with pytest.raises(ValueError, match="anti_windup"):
        cv.LagrangeMultiplier(18.0, projected=True, anti_windup="none")
