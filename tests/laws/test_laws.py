"""Tests of every law and mode against a plain-Python twin, identities, and random settings."""

import itertools
import math
import random
import statistics
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import twin
from hypothesis import given, settings
from hypothesis import strategies as st
from law_traces import assert_law_agrees, random_trace

import controlvae as cv

MODES = ("conditional", "algorithm1", "freeze", "none")
RAMP = cv.Staircase(0.5, 18.0, 0.15, every=7)

CASES = [
    *(
        (
            cv.PI(target, kp, ki, low, high, start, mode, ema),
            lambda trace, a=(kp, ki, low, high, start, mode, ema), v=v: twin.pi(trace, v, *a),
        )
        for mode, (target, v), (kp, ki, low, high), start, ema in itertools.product(
            MODES,
            [(18.0, lambda t: 18.0), (RAMP, twin.staircase(0.5, 18.0, 0.15, 7))],
            [(0.01, 0.001, 0.0, 1.0), (0.01, 0.001, 1.0, math.inf), (0.5, 0.02, 0.2, 0.9)],
            [None, 0.9],
            [0.0, 0.8],
        )
        if start is None or low <= start <= high
    ),
    *(
        (
            cv.PID(18.0, 0.01, 0.001, 0.05, 0.0, 1.0, None, mode, 0.0, 0.7),
            lambda trace, m=mode: twin.pi(
                trace,
                lambda t: 18.0,
                0.01,
                0.001,
                0.0,
                1.0,
                None,
                m,
                linear=True,
                kd=0.05,
                derivative_ema=0.7,
            ),
        )
        for mode in MODES
    ),
    (
        cv.LagrangeMultiplier(18.0, alpha=0.002),
        lambda trace: twin.pi(
            trace, lambda t: 18.0, 0.0, 0.002, 0.0, math.inf, None, "conditional"
        ),
    ),
    (
        cv.Capacity(cv.Linear(0.0, 15.0, steps=100), gamma=100.0),
        lambda trace: twin.capacity(trace, twin.linear(0, 15, 100), 100.0),
    ),
    *(
        (
            cv.Auto(target, reach_in, 1e-3, 2.0, 0.5),
            lambda trace, v=v, reach_in=reach_in: twin.auto(trace, v, reach_in, 1e-3, 2.0, 0.5),
        )
        for target, v in [(RAMP, twin.staircase(0.5, 18.0, 0.15, 7)), (30.0, lambda t: 30.0)]
        for reach_in in (250,)
    ),
    (cv.Geco(18.0, alpha=2e-3), lambda trace: twin.geco(trace, 18.0, 2e-3, 1.0, 0.99)),
    # The negative log-likelihood of a density may be negative.
    (cv.Geco(-18.0, alpha=1e-4), lambda trace: twin.geco(trace, -18.0, 1e-4, 1.0, 0.99)),
    (cv.Constant(4.0), lambda trace: [4.0 for _ in trace]),
    (
        cv.Linear(0.0, 1.0, steps=50),
        lambda trace: [twin.linear(0, 1, 50)(t + 1) for t in range(len(trace))],
    ),
    (cv.Sigmoid(steps=50), lambda trace: [twin.sigmoid(50)(t + 1) for t in range(len(trace))]),
    (
        cv.Cyclical(period=20),
        lambda trace: [twin.cyclical(20, 0.5)(t + 1) for t in range(len(trace))],
    ),
    (
        cv.Points((10, 40, 200), (100.0, 20.0, 2.5)),
        lambda trace: [
            float(np.interp(t + 1, (10, 40, 200), (100.0, 20.0, 2.5))) for t in range(len(trace))
        ],
    ),
    (RAMP, lambda trace: [twin.staircase(0.5, 18.0, 0.15, 7)(t + 1) for t in range(len(trace))]),
]
FEEDBACK = [law for law, _ in CASES if isinstance(law, cv.laws.Feedback)]
FEEDBACK += [cv.Auto(30.0, None, 1e-3, 2.0, 0.5), cv.Auto(RAMP)]


@pytest.mark.parametrize(
    ("law", "reference"), CASES, ids=lambda x: repr(x) if isinstance(x, cv.laws.Law) else ""
)
def test_law_agrees_with_its_twin(law, reference):
    assert_law_agrees(law, reference)


def test_integral_action_is_the_lagrange_multiplier():
    trace = random_trace(3)
    pi = cv.Controller(cv.PI(20.0, kp=0.0, ki=5e-4, beta_max=math.inf))
    multiplier = cv.Controller(cv.LagrangeMultiplier(20.0, alpha=5e-4))
    assert [pi.step(x) for x in trace] == [multiplier.step(x) for x in trace]


def test_fixed_output_is_the_beta_vae():
    fixed = cv.Controller(cv.PI(20.0, beta_min=4.0, beta_max=4.0))
    constant = cv.Controller(cv.Constant(4.0))
    trace = random_trace(4)
    assert [fixed.step(x) for x in trace] == [constant.step(x) for x in trace] == [4.0] * len(trace)


def plant(beta, kl):
    """Return the next KL of a first-order system that falls with its weight, like that of a VAE."""
    return kl + 0.05 * (60.0 / (1.0 + 2.0 * max(beta, 0.0)) - kl)


@pytest.mark.parametrize(
    "law", [law for law in FEEDBACK if law.anti_windup == "conditional"], ids=repr
)
def test_feedback_settles_at_the_target(law):
    # Gains and bounds come from the law, the set point from the plant: 30 nats need a weight of
    # 0.5, and 15 nats one of 1.5.
    reachable = 30.0 if law.beta_min < 0.5 else 15.0
    control, kl = cv.Controller(replace(law, target=reachable)), 0.05
    for _ in range(60_000):
        kl = plant(control.step(60.0 - kl if law.controls_reconstruction else kl), kl)
    assert kl == pytest.approx(
        60.0 - reachable if law.controls_reconstruction else reachable, rel=0.01
    )


def linear_vae(variances, scale, lag, kl=0.0):
    """Return a function from β to the KL of a linear VAE (Lucas et al. 2019), with a lag.

    `scale` changes the units of the reconstruction.
    """

    def respond(beta):
        nonlocal kl
        settled = sum(0.5 * math.log(v * scale / beta) for v in variances if v * scale > beta)
        kl += (settled - kl) / lag
        return kl

    return respond


@pytest.mark.parametrize("reach_in", [None, 2_000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("latents", "target"), [(10, 18.0), (100, 145.0), (64, 3.0)])
def test_auto_reaches_its_target_in_any_units(latents, target, scale, reach_in):
    variances = [60.0 * 0.95**k for k in range(latents)]
    model, control, random_numbers = (
        linear_vae(variances, scale, lag=60),
        cv.Controller(cv.Auto(target, reach_in)),
        random.Random(1),
    )
    beta, trace = control.beta, []
    for _ in range(6_000):
        trace.append(model(beta))
        beta = control.step(trace[-1] * random_numbers.gauss(1.0, 0.02))  # a batch's KL is noisy
    response = cv.metrics.step_response(
        [statistics.fmean(trace[k : k + 50]) for k in range(0, 6_000, 50)], target
    )
    # To 2 %, from an initial weight that may be three orders of magnitude off.
    assert response.settling_time * 50 <= (2 * reach_in if reach_in else 1_500)
    assert abs(response.steady_state_error) < 0.005


@pytest.mark.parametrize("first", [0.1, 60.0])
def test_auto_does_not_wind_up_while_the_code_forms(first):
    """The KL is near zero, or three times the target, for 50 steps at any weight."""

    def overshoot(law):
        control, model = (
            cv.Controller(law),
            linear_vae([60.0 * 0.95**k for k in range(10)], 1.0, lag=60, kl=first),
        )
        trace = [first] * 50
        for kl in trace:
            beta = control.step(kl)
        for _ in range(1_500):
            trace.append(model(beta))
            beta = control.step(trace[-1])
        return max(trace) / 18.0 - 1 if first < 18.0 else 1 - min(trace) / 18.0

    assert overshoot(cv.Auto(18.0)) < overshoot(cv.Auto(18.0, reach_in=200)) / 2


def test_auto_averages_more_with_noisier_batches():
    def scatter(law):
        control, random_numbers = cv.Controller(law), random.Random(1)
        model, betas = linear_vae([60.0 * 0.95**k for k in range(10)], 1.0, lag=60), [1.0]
        for _ in range(1_600):  # both have a horizon of 200 until then
            betas.append(control.step(model(betas[-1]) * random_numbers.gauss(1.0, 0.25)))
        return statistics.stdev(map(math.log, betas[-800:]))

    assert scatter(cv.Auto(18.0)) < scatter(cv.Auto(18.0, reach_in=200)) / 1.5


def test_auto_accepts_a_new_target_without_a_jump():
    control, model = (
        cv.Controller(cv.Auto(18.0, reach_in=400)),
        linear_vae([60.0] * 10, 1.0, lag=20),
    )
    beta = control.beta
    for _ in range(3_000):
        beta = control.step(model(beta))
    control.set_target(12.0)
    assert control.step(model(beta)) == pytest.approx(beta, rel=0.05)


numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=150, deadline=None)
@given(
    target=st.floats(1e-3, 1e4),
    kp=st.floats(0, 10),
    ki=st.floats(0, 1),
    kd=st.floats(0, 1),
    low=st.floats(-1, 5),
    width=st.floats(0, 100),
    mode=st.sampled_from(MODES),
    ema=st.floats(0, 0.99),
    trace=st.lists(numbers, min_size=1, max_size=60),
    kind=st.sampled_from(
        ["pi", "pid", "lagrange", "projected", "nupi", "incremental", "geco", "adaptive", "log"]
    ),
    direction=st.sampled_from(["direct", "inverse"]),
)
def test_beta_stays_in_bounds_and_state_stays_finite(
    target, kp, ki, kd, low, width, mode, ema, trace, kind, direction
):
    low = abs(low) + 1e-3 if kind in ("geco", "adaptive", "log") else low
    high = low + width
    law = {
        "pi": lambda: cv.PI(target, kp, ki, low, high, None, mode, ema),
        "pid": lambda: cv.PID(target, kp, ki, kd, low, high, None, mode, ema),
        "lagrange": lambda: cv.LagrangeMultiplier(target, ki, low, high, None, mode, ema),
        "projected": lambda: cv.LagrangeMultiplier(target, ki, low, high, ema=ema, projected=True),
        "nupi": lambda: cv.NuPI(target, kp, ki, ema, low, high),
        "incremental": lambda: cv.IncrementalPI(target, kp, ki, low, high, low, ema),
        "geco": lambda: cv.Geco(target, ki, low, high, low, ema),
        "adaptive": lambda: cv.AdaptiveKL(target, 500, 64, low, high, low, ema),
        "log": lambda: cv.LogLagrange(target, ki, low, high, low, ema=ema),
    }[kind]()
    law = replace(law, direction=direction)
    by_float, by_tensor = cv.Controller(law), cv.Controller(law)
    for x in trace:
        beta = by_float.step(x)
        assert low <= beta <= high
        assert all(math.isfinite(value) for value in by_float.state)
        also = by_tensor.step(torch.tensor(x, dtype=torch.float64))
        assert also.item() == pytest.approx(beta, rel=1e-9, abs=1e-9)


def test_set_point_of_800_does_not_overflow():
    control = cv.Controller(cv.PI(target=800.0))
    assert control.step(0.0) == 0.0
    assert 0 <= control.step(5000.0) <= 1


def test_large_first_error_does_not_latch():
    # The released dSprites controller: with set point 18, a KL of 0 for one step and of 100 from
    # then on, beta stays at 1.
    official = cv.PI.paper("disentangling", target=18.0)
    latched, free = cv.Controller(replace(official, anti_windup="freeze")), cv.Controller(official)
    for control in (latched, free):
        control.step(0.0)
        for _ in range(1_000):
            control.step(100.0)
    assert latched.beta == 1.0
    assert free.beta == pytest.approx(1 + 0.01 + 0.001 * 82 * 1_000, rel=1e-6)


def test_no_windup_below_an_unreachable_target():
    control = cv.Controller(cv.PI.paper("images", target=170.0))
    for _ in range(100_000):
        control.step(100.0)
    assert control.beta == 0.0
    assert control.step(200.0) > 0.0
    wound = cv.Controller(replace(control.laws[0], anti_windup="algorithm1"))
    for _ in range(100_000):
        wound.step(100.0)
    assert wound.step(200.0) == 0.0  # as printed, the integral has wound up for 100,000 steps


def test_constants_of_the_paper():
    shapes, images, text = (cv.PI.paper(task) for task in ("disentangling", "images", "text"))
    assert (shapes.kp, shapes.ki, shapes.beta_min, shapes.target.stop) == (0.01, 1e-3, 1.0, 16.0)
    assert (images.kp, images.ki, images.beta_min, images.beta_max, images.target) == (
        0.01,
        1e-4,
        0.0,
        1.0,
        145.0,
    )
    assert (text.kp, text.ki, text.beta_min, text.beta_max) == (0.01, 1e-4, 0.0, 1.0)
    # Notes on the released scripts: the ramps reach 16 at step 520,000 and 18 at 585,000.
    control = cv.Controller(
        cv.PI.paper("disentangling", target=cv.Staircase(0.5, 18.0, 0.15, every=5_000))
    )
    schedule = control.laws[0].target
    at = lambda t: schedule.at(float(t), cv.laws.backend.FLOATS)  # noqa: E731
    assert at(584_999) < 18.0 == at(585_000)


def test_tuning_rules():
    assert cv.kp_limit(3.0) == pytest.approx((1 + math.exp(3.0)) * 1e-3)
    assert cv.kp_limit(800.0) == math.inf
    # Set points of the paper's own tables: CIFAR-10 118 to 150.8, CelebA 127 to 160.9.
    assert cv.target_range(118.0).high == pytest.approx(150.79, abs=0.01)
    # The band ends where the most that can be gained is what the KL costs.
    assert cv.gain_bound(118.0, 32.79) == pytest.approx(32.79, abs=0.01)
    assert cv.target_range(127.0) == pytest.approx((127.0, 160.94), abs=0.01)


@pytest.mark.parametrize(
    ("build", "number"),
    [
        (lambda: cv.PI(target=1.5), "0.005482"),
        (lambda: cv.PI(target=18.0, ki=0.1), "ki=0.1"),
    ],
)
def test_gains_outside_the_rules_give_a_warning(build, number):
    with pytest.warns(cv.TuningWarning, match=number):
        build()


def test_gains_inside_the_rules_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cv.PI(target=18.0)
        cv.PI.paper("text", target=1.5)
        # The term of kp at a KL of zero is small compared with beta_min.
        cv.PI(target=0.5, beta_min=1.0, beta_max=100.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cv.PI(target=math.nan), "target must be a finite number"),
        (lambda: cv.Auto(target=0.0), "target must not be zero"),
        (lambda: cv.PI(target=18.0, ki=-0.001), "ki must be zero or positive, got -0.001"),
        (lambda: cv.PI(target=18.0, beta_min=2.0), "beta_min=2.0, beta_max=1.0"),
        (lambda: cv.PI(target=18.0, beta_init=7.0), "beta_init"),
        (lambda: cv.PI(target=18.0, anti_windup="magic"), "conditional, algorithm1, freeze, none"),
        (lambda: cv.PI(target=18.0, ema=1.0), "ema"),
        (lambda: cv.Staircase(0.5, 18.0, -0.15, every=10), "step must be positive"),
        (lambda: cv.Linear(0.0, 1.0, steps=0), "steps must be at least one"),
        (lambda: cv.PI.paper("music"), "'music'"),
    ],
)
def test_invalid_settings_raise_with_the_value(build, message):
    with pytest.raises(ValueError, match=message):
        build()
