"""Tests of `NuPI` against the formula of its paper and against the package cooper."""

import math

import pytest
import torch
from law_traces import assert_law_agrees, random_trace

import controlvae as cv


def nupi(trace, target, kp, ki, nu, high=math.inf):
    """Return the multiplier of Sohrabi et al., projected onto [0, high] after each step."""
    beta, average, betas = 0.0, None, []
    for x in trace:
        if math.isfinite(x):
            violation = x - target
            change = ki * violation
            if average is None:
                average = 0.0
            else:
                new = nu * average + (1 - nu) * violation
                change += kp * (new - average)
                average = new
            beta = min(max(beta + change, 0.0), high)
        betas.append(beta)
    return betas


@pytest.mark.parametrize("nu", [-0.5, 0.0, 0.9])
@pytest.mark.parametrize("high", [0.3, math.inf])
def test_law_is_the_recursion_of_the_paper(nu, high):
    law = cv.NuPI(18.0, kp=0.01, ki=0.002, nu=nu, beta_max=high)
    assert_law_agrees(law, lambda trace: nupi(trace, 18.0, 0.01, 0.002, nu, high))


@pytest.mark.parametrize("nu", [0.0, 0.7])
def test_law_agrees_with_cooper(nu):
    cooper = pytest.importorskip("cooper")
    multiplier = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimiser = cooper.optim.nuPI([multiplier], lr=1e-3, Kp=10.0, Ki=2.0, ema_nu=nu, maximize=True)
    control = cv.Controller(cv.NuPI(18.0, kp=1e-2, ki=2e-3, nu=nu))
    for x in filter(math.isfinite, random_trace(3)):
        multiplier.grad = torch.tensor(x - 18.0, dtype=torch.float64)
        optimiser.step()
        multiplier.data.clamp_(min=0.0)
        assert control.step(x) == pytest.approx(multiplier.item(), rel=1e-6, abs=1e-9)


def test_law_without_proportional_gain_is_projected_ascent():
    ascent = cv.Controller(cv.LagrangeMultiplier(18.0, alpha=1e-3, projected=True))
    control = cv.Controller(cv.NuPI(18.0, kp=0.0, ki=1e-3))
    trace = random_trace(4)
    assert [control.step(x) for x in trace] == [ascent.step(x) for x in trace]


@pytest.mark.parametrize("direction", ["direct", "inverse"])
def test_new_target_does_not_move_the_weight(direction):
    law = cv.NuPI(18.0, nu=0.5, beta_init=0.5, direction=direction)
    moved, same = cv.Controller(law), cv.Controller(law)
    for x in (17.0, 18.5, 18.2):
        moved.step(x), same.step(x)
    moved.set_target(30.0)
    assert moved.beta == same.beta
    # The integral alone sees the new set point.
    expected = same.step(18.1) - (0.012 if direction == "direct" else -0.012)
    assert moved.step(18.1) == pytest.approx(expected)


@pytest.mark.parametrize("nu", [1.0, -1.0, math.nan])
def test_average_must_forget(nu):
    with pytest.raises(ValueError, match="nu"):
        cv.NuPI(18.0, nu=nu)
