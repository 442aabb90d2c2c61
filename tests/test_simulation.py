"""Tests of plants fitted to logs, of simulated laws, and of the search for a target."""

import math
import warnings

import pytest
import torch

import controlvae as cv

PLANT = cv.Plant(kl_at_one=12.0, slope=0.4, lag=60.0, start=0.5, noise=0.02)


@pytest.mark.parametrize(
    ("law", "tolerance"),
    [
        (cv.Auto(18.0, 500), 0.02),
        (cv.Linear(0.01, 1.0, 1_000), 0.05),
        (cv.Cyclical(500, start=0.05), 0.05),
        # The weight of PI rises from zero within the first window, which its mean cannot show.
        (cv.PI(18.0), 0.15),
    ],
    ids=repr,
)
def test_fit_recovers_the_plant_of_a_log(law, tolerance):
    found = cv.Plant.fit(cv.simulate(law, PLANT))
    for name in ("kl_at_one", "slope", "lag"):
        assert getattr(found, name) == pytest.approx(getattr(PLANT, name), rel=tolerance)
    assert found.noise == pytest.approx(PLANT.noise, rel=0.15)  # the KL also moves within a window


def test_single_batch_records_separate_noise_from_misfit():
    log = [
        {key: line[key] for key in ("step", "beta", "kl")}
        for line in cv.simulate(cv.Auto(18.0, 500), PLANT, log_every=1)
    ]
    found = cv.Plant.fit(log)
    assert found.noise == pytest.approx(PLANT.noise, rel=0.1)
    assert found.misfit < 0.25 * found.noise


def test_fit_accepts_long_logs_and_several_logs():
    logs = [
        cv.simulate(cv.Auto(target, 2_000), PLANT, 50_000, log_every=5) for target in (10.0, 18.0)
    ]
    found = cv.Plant.fit(*logs)
    assert found.slope == pytest.approx(PLANT.slope, rel=0.03)
    assert found.lag == pytest.approx(PLANT.lag, rel=0.05)


def test_response_to_a_constant_weight_is_exponential():
    """log KL moves from log 0.5 to log 12 with a lag of 60 steps."""
    records = cv.simulate(cv.Constant(1.0), cv.Plant(12.0, 0.4, 60.0), 200, log_every=1)
    for record in records:
        share = math.exp(-(record["step"] - 1) / 60)
        assert record["kl"] == pytest.approx(12.0 * (0.5 / 12.0) ** share)


def test_integral_law_settles_at_the_plants_weight():
    records = cv.simulate(cv.PI(15.0, beta_max=math.inf), PLANT, 5_000)
    assert PLANT.settles_at(records[-1]["beta"]) == pytest.approx(15.0, rel=0.02)


def test_fit_accepts_the_log_of_a_resumed_run():
    log = cv.simulate(cv.Cyclical(500, start=0.05), PLANT, log_every=1)
    late = cv.Plant.fit([{**record, "step": record["step"] + 5_000} for record in log])
    assert (late.slope, late.lag) == pytest.approx((PLANT.slope, PLANT.lag), rel=0.05)
    coarse = cv.Plant.fit(
        cv.simulate(cv.Cyclical(20_000, start=0.05), PLANT, 60_000, log_every=1_000)
    )
    assert 1 < coarse.start < 100


def test_uninformative_logs_are_rejected():
    with pytest.raises(ValueError, match="constant"):
        cv.Plant.fit(cv.simulate(cv.Constant(1.0), PLANT))
    with pytest.raises(ValueError, match="20 records"):
        cv.Plant.fit(cv.simulate(cv.PI(18.0), PLANT, 100))
    rising = [{"step": 20 * n, "beta": 0.01 * n, "kl": 0.5 * n} for n in range(1, 100)]
    with pytest.raises(ValueError, match="slope"):
        cv.Plant.fit(rising)


@pytest.mark.parametrize(
    ("law", "wide"), [(cv.Linear(0.9, 1.1, 1_000), False), (cv.Linear(0.02, 1.0, 1_000), True)]
)
def test_plant_reports_the_range_of_the_weight(law, wide):
    log = cv.simulate(law, PLANT)
    moved = cv.Plant.fit(log).weight_ratio
    assert moved == pytest.approx(max(r["beta"] for r in log) / min(r["beta"] for r in log))
    assert (moved >= cv.simulation.WIDE_WEIGHT_RATIO) == wide


def test_model_without_a_code_gets_no_target():
    with pytest.raises(ValueError, match="no set point is reachable"):
        cv.measure_target(lambda weight: 0.0)


def test_diverged_training_gives_no_advice():
    with pytest.raises(ValueError, match="got nan at a weight of 0"):
        cv.measure_target(lambda weight: math.nan if weight == 0 else 5.0)


@pytest.mark.parametrize(
    ("plain", "free", "expected_warnings"),
    [
        # Within 5 %. At a weight of zero the KL may rise for ever.
        ((10.0, 10.4), (300.0, 400.0), []),
        (
            (10.0, 13.5),
            (300.0, 290.0),
            ["the plain VAE's KL is still rising, from 10.0 to 13.5 nats"],
        ),
        ((0.01, 0.05), (300.0, 300.0), []),  # collapsed
        (
            (12.0, 10.0),
            (9e6, 2e3),
            ["still falling, from 12.0 to 10.0 nats", "from 9,000,000.0 to 2,000.0 nats"],
        ),
        (
            (10.0, 10.0),
            (9e6, 9e6),
            ["doubtful: 9,000,000.0 nats are more than 100 times the end of the paper's band"],
        ),
        (
            (10.0, 10.0),
            (12.0, 14.0),
            ["doubtful: at a weight of 0 the KL is still rising, from 12.0 to 14.0"],
        ),
    ],
)
def test_unsettled_kl_gives_a_warning(plain, free, expected_warnings):
    """Only the KL half-way and that at the end count."""
    course = lambda half, end: [1e9] * 40 + [half] * 10 + [1e9] * 40 + [end] * 10  # noqa: E731
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        advice = cv.measure_target(lambda weight: course(*(plain if weight == 1 else free)))
    assert advice.band.low == pytest.approx(plain[1])
    assert len(caught) == len(expected_warnings)
    for warning, words in zip(caught, expected_warnings, strict=True):
        assert words in str(warning.message)
        assert str(warning.message).endswith("train for longer")


@pytest.mark.filterwarnings("ignore:.*still falling")
def test_training_function_is_probed_at_one_and_the_bounds():
    weights = []

    def train(weight):
        weights.append(weight)
        return [100.0] * 90 + [12.0 / (weight + 0.2)] * 10  # the KL of every step

    advice = cv.measure_target(train, beta_max=4.0)
    assert weights == [1.0, 0.0, 4.0]
    assert advice.band.low == pytest.approx(10.0)
    assert advice.reachable == pytest.approx((12.0 / 4.2, 60.0))
    assert advice.band.low < advice.target < advice.band.high
    assert f"{advice.target:.3g} nats" in str(advice)
    assert cv.measure_target(train, beta_max=math.inf).reachable.low == 0.0
    assert cv.measure_target(train, law=cv.Auto(1.0)).reachable.low == 0.0
    with pytest.raises(ValueError, match="got None"):
        cv.measure_target(lambda weight: None)
    with pytest.raises(ValueError, match="beta_min"):
        cv.measure_target(train, beta_min=2.0)


@pytest.mark.parametrize(
    ("train", "law", "message"),
    [
        (
            lambda weight: [(100.0, 9.0)] * 20,
            None,
            r"got \(100.0, 9.0\)",
        ),
        (lambda weight: [], None, "empty"),
        (
            lambda weight: 9.0,
            None,
            "got 9 at 1 and 9 at 0",
        ),
        (lambda weight: 9.0 / (weight + 1), cv.Geco(100.0), "must control the KL"),
        (lambda weight: 9.0 / (weight + 1), cv.Constant(1.0), "must control the KL"),
    ],
)
def test_unusable_training_functions_are_rejected(train, law, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cv.measure_target(train, law=law)


def test_training_function_may_return_tensors_with_gradients():
    kls = [torch.tensor(kl, requires_grad=True) for kl in (50.0, 9.0, 9.0, 9.0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cv.measure_target(
            lambda weight: [kl / (weight + 0.1) for kl in kls]
        ).band.low == pytest.approx(9 / 1.1)
