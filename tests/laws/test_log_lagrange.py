"""Tests of `LogLagrange` against torch's optimisers on log β."""

import math

import pytest
import torch
from law_traces import assert_law_agrees

import controlvae as cv


def learned_temperature(trace, target, optimiser, lr):
    """Return exp(log_alpha) of soft actor-critic, with `entropy` in the trace."""
    log_alpha = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    update = optimiser([log_alpha], lr=lr)
    values = []
    for entropy in trace:
        if math.isfinite(entropy):
            update.zero_grad()
            (log_alpha * (entropy - target)).backward()
            update.step()
        values.append(log_alpha.exp().item())
    return values


@pytest.mark.parametrize(
    ("step_rule", "optimiser", "lr"),
    [("adam", torch.optim.Adam, 3e-3), ("sgd", torch.optim.SGD, 1e-4)],
)
def test_law_is_the_update_of_soft_actor_critic(step_rule, optimiser, lr):
    law = cv.LogLagrange(18.0, lr, step_rule=step_rule, direction="inverse")
    assert_law_agrees(law, lambda trace: learned_temperature(trace, 18.0, optimiser, lr), rel=1e-9)


def test_plain_steps_without_an_average_are_geco():
    geco = cv.Controller(cv.Geco(18.0, alpha=1e-3, beta_min=1e-6, ema=0.0))
    plain = cv.Controller(cv.LogLagrange(18.0, 1e-3, step_rule="sgd", direction="inverse"))
    for x in (3.0, 40.0, 19.0, 18.5):
        assert plain.step(x) == geco.step(x)


def test_adam_moves_as_fast_in_any_unit():
    nats, thousandths = (cv.Controller(cv.LogLagrange(18.0 * unit, 1e-2)) for unit in (1.0, 1e-3))
    for x in (3.0, 40.0, 19.0, 18.5):
        assert nats.step(x) == pytest.approx(thousandths.step(x * 1e-3), rel=1e-6)


def test_step_rule_is_checked():
    with pytest.raises(ValueError, match="step_rule"):
        cv.LogLagrange(18.0, step_rule="lbfgs")
