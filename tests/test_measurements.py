"""Tests of what a controller does with measurements that it cannot use, and with odd callers."""

import copy
import itertools
import math
import pickle
import sys
import threading
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from law_cases import LAWS

import controlvae as cv


def step_through(control, trace):
    for measured in trace:
        control.step(measured)


NOT_NUMBERS = [
    "8",
    b"8",
    bytearray(b"8"),
    1j,
    np.complex64(1),
    True,
    np.True_,
    np.array("8"),
    None,
    np.ma.masked,
]


@pytest.mark.parametrize("wrong", NOT_NUMBERS, ids=repr)
def test_what_is_no_number_is_refused_and_changes_nothing(wrong):
    control = cv.Controller(cv.PI(18.0))
    control.step(20.0)
    before = control.state_dict()
    with pytest.raises(TypeError, match="must be a number or a tensor"):
        control.step(wrong)
    assert control.state_dict() == before


@pytest.mark.parametrize("wrong", [True, 1j, "8", torch.tensor(1j), torch.tensor(True)], ids=repr)
def test_what_is_no_number_is_refused_as_a_target(wrong):
    with pytest.raises(TypeError, match="target must be a number"):
        cv.Controller(cv.PI(18.0)).set_target(wrong)


def test_numbers_of_all_kinds_are_taken():
    expected = cv.Controller(cv.PI(18.0)).step(20.0)
    for number in (20, np.float32(20), np.int64(20), np.array(20.0), Fraction(20)):
        assert cv.Controller(cv.PI(18.0)).step(number) == expected


def test_a_whole_number_beyond_all_floats_is_skipped():
    control = cv.Controller(cv.PI(18.0))
    with pytest.warns(cv.ControlWarning, match="is inf and is skipped"):
        control.step(10**400)
    with pytest.raises(ValueError, match="target must be below"):
        control.set_target(10**400)


def test_a_step_on_a_meta_tensor_leaves_no_trace():
    for models in (None, 2):
        control, twin = (cv.Controller(cv.Auto(18.0), models=models) for _ in range(2))
        shape = () if models is None else (models,)
        for each in (control, twin):
            each.step(torch.full(shape, 20.0))
        weight = control.step(torch.full(shape, 20.0, device="meta", dtype=torch.float16))
        assert weight.is_meta
        assert weight.shape == shape
        assert weight.dtype == torch.float16
        for name, value in control.state_dict().items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(twin.state_dict()[name]))
        assert control.step(torch.full(shape, 5.0)).equal(twin.step(torch.full(shape, 5.0)))
    with pytest.raises(ValueError, match="meta"):
        control.to("meta")


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_threads_share_a_controller_without_losing_steps(kind):
    control, interval = cv.Controller(cv.PI(18.0)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        measured = kind(20.0)
        threads = [
            threading.Thread(target=lambda: [control.step(measured) for _ in range(1_000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    alone = cv.Controller(cv.PI(18.0))
    for _ in range(4_000):
        alone.step(measured)
    assert float(control.state.step) == 4_000
    assert float(control.beta) == float(alone.beta)


def test_a_controller_with_a_lock_can_be_copied():
    control = cv.Controller(cv.PI(18.0))
    control.step(20.0)
    for copied in (copy.deepcopy(control), pickle.loads(pickle.dumps(control))):
        assert copied.step(20.0) == copy.copy(control).step(20.0)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_nothing_measured_is_none_and_not_zero(law, monitor, kind):
    control = cv.Controller(law, monitor=monitor)
    assert control.stats()["measured"] is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cv.ControlWarning)
        control.step(kind(math.nan))
    stats = control.stats()
    assert stats["measured"] is None
    assert stats["error"] is None
    assert stats["skipped"] == 1
    control.step(kind(0.0))
    assert control.stats()["measured"] == 0.0


def test_nothing_measured_is_none_for_each_model():
    control = cv.Controller([cv.PI(18.0), cv.Constant(1.0)], monitor=False)
    control.step(torch.tensor([math.nan, 3.0]))
    assert control.stats()["measured"] == [None, 3.0]
    assert control.stats()["skipped"] == [1, 0]


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (float, "half precision"),
        (lambda x: torch.tensor(x, dtype=torch.float16), "float16 ends at 65,504, so sum"),
        (lambda x: torch.tensor(x, dtype=torch.float32), "half precision"),
    ],
)
def test_the_first_skipped_measurement_is_warned_about_with_its_step_and_cause(kind, cause):
    control = cv.Controller(cv.PI(18.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for measured in [20.0] * 6 + [math.inf] + [20.0] * 3 + [math.nan] * 5:
            control.step(kind(measured))
    assert [warning.category for warning in caught] == [cv.ControlWarning]
    assert "step 7 is inf and is skipped" in str(caught[0].message)
    assert cause in str(caught[0].message)
    assert control.stats()["skipped"] == 6


def test_skipped_measurements_of_models_are_warned_about_by_the_models_number():
    control = cv.Controller(cv.PI(18.0), models=2)
    trace = [torch.tensor([20.0, math.nan if number == 3 else 20.0]) for number in range(30)]
    with pytest.warns(cv.ControlWarning, match="model 1: the measurement of a step before"):
        step_through(control, trace)
    resumed = cv.Controller(cv.PI(18.0), models=2)
    resumed.load_state_dict(control.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error", cv.ControlWarning)  # it was said before the restart
        for _ in range(60):
            resumed.step(torch.full((2,), 20.0))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_negative_values_of_a_nonnegative_quantity_are_skipped(kind, accumulate):
    control = cv.Controller(cv.PI(18.0), nonnegative=True, accumulate=accumulate)
    with pytest.warns(cv.ControlWarning, match="is skipped"):
        step_through(control, [kind(measured) for measured in (20.0, 20.0, -4.0, 20.0)])
    assert control.stats()["skipped"] == 1
    assert control.stats()["measured"] == 20.0
    control = cv.Controller(cv.PI(18.0), nonnegative=True)
    control.step(kind(-1e-6))  # a KL of zero, rounded
    assert control.stats()["skipped"] == 0


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_weight_that_runs_away_stops(kind):
    # The quantity grows with its weight, and the law was told the opposite.
    control = cv.Controller(cv.Auto(18.0))

    def train():
        measured = 20.0
        for _ in range(2_000):
            measured = 20.0 * float(control.step(kind(measured))) ** 0.3

    with (
        pytest.warns(cv.ControlWarning, match="moves away"),
        pytest.raises(cv.ControlError, match=r'stopped, because .* direction="inverse"'),
    ):
        train()
    assert float(control.beta) < 1e20


def test_a_weight_that_starts_from_nothing_does_not_run_away():
    # The KL of a young model grows past the target while the first weights are as good as zero.
    control = cv.Controller(cv.PI(18.0, kp=1e-6, ki=1e-9, beta_max=math.inf))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cv.ControlWarning)
        for step in range(2_000):
            control.step(20.0 + step)


@pytest.mark.parametrize(
    ("make", "models"),
    [(float, None), (torch.tensor, None), (lambda x: torch.full((2,), x), 2)],
)
def test_a_ramp_towards_zero_with_nothing_measured_stays_finite(make, models):
    for kind, stop in itertools.product((cv.Auto, cv.AdaptiveKL), (1e-15, 1e-200, 0.5)):
        law = kind(cv.Linear(18.0, stop, 3))
        control = cv.Controller(law, models=models)
        for measured in (0.0, 0.0, 0.0, 0.0, 5.0, 0.0):
            control.step(make(measured))
        values = torch.stack([torch.as_tensor(v).double() for v in control.state_dict().values()])
        assert bool(torch.isfinite(values).all())
