"""Tests of compiled updates: they compute exactly what the law computes."""

import math
import pickle
import random

import pytest
from law_cases import LAWS

import controlvae as cv
from controlvae.laws.backend import FLOATS
from controlvae.laws.straight_line import compile_update


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_compiled_update_is_equal_by_bits(law):
    update, chance = compile_update(law), random.Random(0)
    expected = compiled = law.initial_state()
    measured = 5.0
    for _ in range(1_000):
        noisy = measured * chance.gauss(1.0, 0.1)
        value = chance.choice([noisy] * 30 + [math.nan, math.inf, 0.0, -1.0])
        expected = law.update(expected, value, FLOATS)
        compiled = update(compiled, value)
        assert repr(compiled) == repr(expected)  # also compares NaN and the sign of zero
        measured += (40.0 / (1.0 + 3.0 * abs(expected.beta)) - measured) / 30


def test_law_that_branches_on_values_is_refused():
    class Branching(cv.PI):
        def proportional(self, target, measured, xp):
            return 0.0 if measured > target else 1.0

    with pytest.raises(TypeError, match="branch"):
        compile_update(Branching(18.0))


@pytest.mark.parametrize("law", [cv.Auto(8.0), cv.PI(8.0)], ids=repr)
def test_long_loop_equals_the_law_and_is_pickled(law):
    control, state = cv.Controller(law), law.initial_state()
    for step in range(500):
        measured = 8.0 + math.sin(step / 20)
        state = law.update(state, measured, FLOATS)
        assert control.step(measured) == state.beta
        if step == 400:
            control = pickle.loads(pickle.dumps(control))
    assert tuple(control.state) == tuple(state)
