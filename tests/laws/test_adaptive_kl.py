"""Tests of `AdaptiveKL` against the formula of Ziegler et al. (2019)."""

import math

import pytest
from law_traces import assert_law_agrees

import controlvae as cv


def adaptive_kl(trace, target, value, horizon, n_steps):
    values = []
    for x in trace:
        if math.isfinite(x):
            error = min(max(x / target - 1, -0.2), 0.2)
            value *= 1 + error * n_steps / horizon
        values.append(value)
    return values


@pytest.mark.parametrize(("horizon", "n_steps"), [(10_000, 256), (500, 64)])
def test_law_is_the_published_formula(horizon, n_steps):
    law = cv.AdaptiveKL(18.0, horizon, n_steps, beta_init=0.2)
    assert_law_agrees(law, lambda trace: adaptive_kl(trace, 18.0, 0.2, horizon, n_steps))


def test_floats_equal_the_formula_to_the_last_bit():
    trace = [0.1, 7.3, 6.02, 5.9, 11.0, 6.6] * 20
    control = cv.Controller(cv.AdaptiveKL(6.0))
    assert [control.step(x) for x in trace] == adaptive_kl(trace, 6.0, 0.2, 10_000, 256)


def test_state_resumes():
    first = cv.Controller(cv.AdaptiveKL(6.0))
    for x in (9.0, 5.0, 8.0):
        first.step(x)
    second = cv.Controller(cv.AdaptiveKL(6.0))
    second.load_state_dict(first.state_dict())
    assert second.step(7.0) == first.step(7.0)


def test_weight_stays_finite_below_an_unreachable_target():
    control = cv.Controller(cv.AdaptiveKL(6.0, horizon=256))
    for _ in range(3_000):
        control.step(100.0)
    assert math.isfinite(control.beta)
    for _ in range(1_000):
        control.step(0.0)
    assert control.beta == 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        {"target": 0.0},
        {"target": cv.Linear(-1.0, 1.0, steps=10)},
        {"horizon": 0},
        {"n_steps": 0},
        {"horizon": 10, "n_steps": 100},
        {"beta_min": 0.0},
        {"beta_init": None},
    ],
)
def test_unusable_settings_raise(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        cv.AdaptiveKL(**{"target": 6.0, **settings})


def test_new_target_of_zero_is_refused():
    with pytest.raises(ValueError, match="zero"):
        cv.Controller(cv.AdaptiveKL(6.0)).set_target(0.0)
