"""Tests of `Auto` on plants with a first-order response of log measured to log β."""

import math
import random

import pytest

import controlvae as cv


def respond(slope=0.5, lag=40.0, level=12.0, lowest=-60.0, noise=0.02, start=1.0):
    """Return a function from β to the next measurement."""
    log, random_numbers = math.log(start), random.Random(0)

    def measure(beta):
        nonlocal log
        weight = max(math.log(beta), lowest)
        log += (math.log(level) - slope * weight - log) / lag
        return math.exp(log) * random_numbers.gauss(1.0, noise)

    return measure


def run(control, measure, steps):
    beta, trace = control.beta, []
    for _ in range(steps):
        trace.append(measure(beta))
        beta = control.step(trace[-1])
    return trace


def mean(values):
    return sum(values) / len(values)


@pytest.mark.parametrize("age", [500, 10_000, 50_000])
@pytest.mark.parametrize(("first", "second"), [(4.0, 10.0), (10.0, 4.0)])
def test_moved_target_is_reached_at_any_age(age, first, second):
    control, measure = cv.Controller(cv.Auto(first)), respond()
    run(control, measure, age)
    control.set_target(second)
    trace = run(control, measure, 600)
    assert mean(trace[300:350]) == pytest.approx(second, rel=0.05)
    assert mean(trace[-100:]) == pytest.approx(second, rel=0.02)


def test_unreachable_target_leaves_no_windup():
    control, measure = cv.Controller(cv.Auto(60.0)), respond(lowest=-2.0)
    run(control, measure, 5_000)
    control.set_target(8.0)
    assert mean(run(control, measure, 1_000)[-100:]) == pytest.approx(8.0, rel=0.02)


@pytest.mark.parametrize("level", [12e-4, 12e4])
def test_weight_has_no_bound_in_absolute_units(level):
    control, measure = cv.Controller(cv.Auto(6.0)), respond(level=level, start=level)
    assert mean(run(control, measure, 4_000)[-100:]) == pytest.approx(6.0, rel=0.02)


@pytest.mark.parametrize("lag", [5.0, 40.0, 400.0])
@pytest.mark.parametrize("slope", [0.2, 0.5, 1.5])
def test_plants_of_any_speed_and_slope_are_held(slope, lag):
    control, measure = cv.Controller(cv.Auto(6.0)), respond(slope, lag)
    assert mean(run(control, measure, 5_000)[-200:]) == pytest.approx(6.0, rel=0.02)


def test_negative_target_in_inverse_direction_is_held():
    entropy, control = 3.0, cv.Controller(cv.Auto(-2.0, direction="inverse"))
    beta, trace = control.beta, []
    for _ in range(3_000):
        entropy += (1.0 + 2.0 * math.log(beta) - entropy) / 30
        trace.append(entropy)
        beta = control.step(entropy)
    assert mean(trace[-100:]) == pytest.approx(-2.0, rel=0.02)


def test_ramp_towards_zero_stays_finite():
    control = cv.Controller(cv.Auto(cv.Linear(8.0, 1e-9, steps=50)))
    weights = [control.step(0.0) for _ in range(200)]
    assert all(map(math.isfinite, weights))
    assert all(map(math.isfinite, control.state))


def test_state_of_version_0_2_is_resumed():
    control = cv.Controller(cv.Auto(6.0))
    measure = respond()
    run(control, measure, 1_000)
    new_fields = cv.laws.AutoState._fields[12:]
    saved = {k: v for k, v in control.state_dict().items() if k not in new_fields}
    resumed = cv.Controller(cv.Auto(6.0))
    resumed.load_state_dict(saved)
    assert mean(run(resumed, measure, 1_000)[-100:]) == pytest.approx(6.0, rel=0.02)


@pytest.mark.parametrize(("slope", "delay"), [(1.5, 30), (0.5, 60)])
def test_oscillation_under_a_delay_is_damped(slope, delay):
    control, measure = cv.Controller(cv.Auto(4.0), monitor=False), respond(slope, lag=80.0)
    betas, trace, gains = [control.beta] * delay, [], []
    for _ in range(4_000):
        trace.append(measure(betas[-delay]))
        betas.append(control.step(trace[-1]))
        gains.append(control.state.gain)
    assert min(gains) < 0.6 < gains[-1]  # it recovers when the oscillation has ended
    assert mean(trace[-1_000:]) == pytest.approx(4.0, rel=0.02)
    assert max(trace[-1_000:]) < 4.0 * 1.25
