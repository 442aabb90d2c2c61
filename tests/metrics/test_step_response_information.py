"""Tests of the step response and of active units against hand-computed values."""

import numpy as np
import pytest

import controlvae as cv


def test_step_response_of_a_hand_computed_trace():
    # Set point 10, band ±2 %: settled from the fourth value, largest value 12.
    response = cv.metrics.step_response(
        [0.0, 5.0, 12.0, 10.1, 10.0, 9.9, 10.0, 10.1, 10.0, 10.05], target=10.0
    )
    assert response.settling_time == 4.0
    assert response.overshoot == pytest.approx(0.2)
    assert response.steady_state_error == pytest.approx(0.005)
    assert response.steady_state_spread == 0.0


def test_step_response_from_above_overshoots_below():
    response = cv.metrics.step_response(
        [20.0, 8.0, 10.0, 10.0], target=10.0, steps=[100, 200, 300, 400]
    )
    assert response.overshoot == pytest.approx(0.2)
    assert response.settling_time == 300.0


def test_step_response_to_a_negative_set_point():
    # Starts 100 nats above, then goes 20 below; shares refer to |set point|.
    response = cv.metrics.step_response([0.0, -120.0, -99.0, -99.0], target=-100.0)
    assert response.overshoot == pytest.approx(0.2)
    assert response.settling_time == 3.0
    assert response.steady_state_error == pytest.approx(0.01)


def test_step_response_of_a_first_order_approach():
    steps = np.arange(1, 1001)
    trace = 18.0 * (1 - np.exp(-steps / 100))
    response = cv.metrics.step_response(trace, 18.0, steps=steps)
    assert response.settling_time == pytest.approx(100 * np.log(50), abs=1)  # exp(-t/100) = 2 %
    assert response.overshoot == 0.0


def test_step_response_to_a_ramp():
    ramp = np.linspace(1, 10, 50)
    assert cv.metrics.step_response(ramp, ramp).settling_time == 1.0
    assert cv.metrics.step_response(0.9 * ramp, ramp).settling_time is None
    assert cv.metrics.step_response(0.9 * ramp, ramp).steady_state_error == pytest.approx(-0.1)


@pytest.mark.parametrize("trace", [[], [[1.0, 2.0]], [1.0, float("nan")]])
def test_step_response_rejects_invalid_traces(trace):
    with pytest.raises(ValueError, match="trace must be"):
        cv.metrics.step_response(trace, 10.0)


def test_step_response_rejects_a_target_of_wrong_length():
    with pytest.raises(ValueError, match=r"target .* 3 values .* got \(2,\)"):
        cv.metrics.step_response([1.0, 2.0, 3.0], [1.0, 2.0])


def test_active_units_counts_varying_means():
    # Standard deviations of the means; 0.05² < 0.01 < 0.2².
    spread = np.array([0.0, 0.05, 0.2, 1.0])
    wave = np.array([-1.0, 1.0] * 50)[:, None]
    assert cv.metrics.active_units(wave * spread) == 2
    assert cv.metrics.active_units(wave * spread + 7.0) == 2  # a constant shift does not count
    with pytest.raises(ValueError, match="examples, latents"):
        cv.metrics.active_units(np.zeros(5))
