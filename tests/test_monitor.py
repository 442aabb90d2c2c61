"""Tests of the monitor: settling, faults and their warnings, the same for floats and tensors."""

import math
import random
import warnings

import pytest
import torch

import controlvae as cv
from controlvae._monitor import state as monitor_state
from controlvae._monitor.blocks import fold, observe, observe_float
from controlvae._monitor.messages import describe_fault
from controlvae._monitor.state import (
    FLOAT_VECTORS,
    TENSOR_VECTORS,
    BlockSums,
    Reading,
    initial_monitor,
    pack_tensors,
    pack_values,
    read_traits,
    unpack_floats,
)
from controlvae.laws.backend import FLOATS, TENSORS


def run_plant(law, settle_at, start, steps=1_000, noise=0.05, lag=60, seed=0, **options):
    """Return the controller after it drove a first-order plant, and the steps of its warnings.

    Args:
        law: Law under test.
        settle_at: Function from the weight to the value that the plant approaches.
        start: Initial value.
        steps: Number of steps.
        noise: Standard deviation of the measurement, relative to the target.
        lag: Time constant in steps.
        seed: Seed of the noise.
        options: Arguments of the controller.
    """
    generator, value = random.Random(seed), start
    control, warned = cv.Controller(law, **options), {}
    for step in range(1, steps + 1):
        measured = value + noise * abs(law.target) * generator.gauss(0, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            weight = control.step(measured)
        warned.update({str(each.message): step for each in caught})
        value += (settle_at(weight) - value) / lag
    return control, warned


def kl_of(weight):
    return 12 * max(weight, 1e-4) ** -0.4


def entropy_of(weight):
    return 1.6 * weight / (weight + 1)


@pytest.mark.parametrize("law", [cv.PI(18.0), cv.Auto(18.0), cv.LagrangeMultiplier(18.0, 1e-3)])
@pytest.mark.parametrize("start", [0.5, 40.0])
def test_healthy_loop_settles_without_a_warning(law, start):
    control, warned = run_plant(law, kl_of, start, steps=2_000)
    certificate = control.certificate()
    assert not warned
    assert certificate.settled
    assert 25 <= certificate.since <= 700
    assert certificate.low < certificate.mean < certificate.high
    assert certificate.mean == pytest.approx(18.0, rel=0.02)


@pytest.mark.parametrize(
    ("law", "settle_at", "start"),
    [
        (cv.PI(1.0, kp=0.01), entropy_of, 1.4),
        (cv.LagrangeMultiplier(1.0, 1e-2, beta_max=100.0, beta_init=0.6), entropy_of, 0.6),
        (cv.PI(18.0, direction="inverse", beta_init=0.5), kl_of, 14.0),
    ],
    ids=["PI", "Lagrange", "inverse PI"],
)
def test_wrong_direction_is_named_within_500_steps(law, settle_at, start):
    _, warned = run_plant(law, settle_at, start, lag=30)
    other = "direct" if law.direction == "inverse" else "inverse"
    assert warned
    assert min(warned.values()) <= 500
    assert all(f'direction="{other}"' in message for message in warned)


@pytest.mark.parametrize("target", [20.0, 0.5])
def test_missing_response_is_named_within_500_steps(target):
    law = cv.LagrangeMultiplier(target, alpha=1e-3, beta_init=1e-4)
    _, warned = run_plant(law, lambda weight: 5.0, 5.0)
    assert warned
    assert min(warned.values()) <= 500


def test_weight_without_effect_is_named():
    monitor, law = initial_monitor(1.0), read_traits(cv.PI(18.0, beta_max=math.inf))
    for block in range(1, 21):
        reading = Reading(25.0 * block, 18.0, 2.0**block, 2.0**block)
        monitor = fold(monitor, BlockSums(25.0, 25.0, 100.0), reading, law, FLOATS, FLOAT_VECTORS)
    assert "does not respond" in describe_fault(reading, monitor, law)


@pytest.mark.parametrize(
    ("target", "bound", "reachable"), [(30.0, "beta_min", 12), (2.0, "beta_max", 6)]
)
def test_target_out_of_reach_is_named_within_500_steps(target, bound, reachable):
    law = cv.PI(target, beta_init=0.6)
    control, warned = run_plant(law, lambda weight: 12 / (1 + weight), 8.0, lag=30)
    certificate = control.certificate()
    assert min(warned.values()) <= 500
    assert any(bound in message for message in warned)
    assert not certificate.settled
    assert certificate.bound == bound
    assert certificate.reachable == pytest.approx(reachable, rel=0.05)
    assert bound in str(certificate)


def test_each_fault_is_named_once():
    _, warned = run_plant(cv.PI(30.0), lambda weight: 12.0, 12.0, steps=3_000)
    assert len(warned) == 1


def test_satisfied_constraint_rests_without_a_warning():
    law = cv.LagrangeMultiplier.at_most(18.0, alpha=1e-3)
    control, warned = run_plant(law, lambda weight: 9 / (1 + weight), 9.0, steps=1_500)
    certificate = control.certificate()
    assert not warned
    assert certificate.settled
    assert certificate.bound is None
    assert certificate.mean == pytest.approx(9.0, rel=0.05)
    assert "at most 18" in str(certificate)


def test_violated_constraint_at_the_far_bound_is_named():
    law = cv.LagrangeMultiplier.at_most(5.0, alpha=1e-2, beta_max=1.0)
    control, warned = run_plant(law, lambda weight: 18 / (1 + weight), 18.0)
    assert warned
    assert control.certificate().bound == "beta_max"


def test_new_target_starts_over():
    control, _ = run_plant(cv.PI(18.0), kl_of, 10.0, steps=1_200)
    assert control.certificate().settled
    control.set_target(9.0)
    for _ in range(60):
        control.step(18.0)
    certificate = control.certificate()
    assert not certificate.settled
    assert certificate.target == 9.0


def test_monitor_can_be_switched_off():
    control, warned = run_plant(cv.PI(30.0), lambda weight: 12.0, 12.0, monitor=False)
    assert not warned
    assert "monitor=False" in repr(control)
    assert not any(name.startswith("monitor") for name in control.state_dict())
    with pytest.raises(ValueError, match="monitor=True"):
        control.certificate()


@pytest.mark.parametrize("monitor", [True, False])
@pytest.mark.parametrize("law", [cv.PI(18.0), cv.Constant(1.0)], ids=repr)
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_skipped_measurements_are_counted(law, kind, monitor):
    control = cv.Controller(law, monitor=monitor)
    for number in range(60):
        control.step(kind(math.nan if number % 10 == 3 else 17.0))
    assert control.stats()["skipped"] == 6


def test_skipped_measurements_of_each_model_are_counted():
    for monitor in (True, False):
        control = cv.Controller([cv.PI(18.0), cv.Constant(1.0)], monitor=monitor)
        for number in range(30):
            control.step(torch.tensor([math.inf if number < 3 else 17.0, 5.0]))
        assert control.stats()["skipped"] == [3, 0]


def test_blocks_without_a_measurement_change_no_mean():
    control = cv.Controller(cv.PI(18.0))
    for number in range(600):
        control.step(18.0 if number < 300 else math.nan)
    assert control.certificate().settled
    assert control.certificate().mean == pytest.approx(18.0)


# Floats and tensors


def random_blocks(seed, count=60):
    """Yield the sums and the reading of blocks that visit every branch."""
    generator, weight = random.Random(seed), 1.0
    for block in range(1, count + 1):
        target = 18.0 if block < 40 else 9.0
        spread = generator.choice([0.1, 1.0, 10.0]) if block % 20 == 0 else 0.2
        usable = 0.0 if block % 13 == 0 else 25.0
        weight *= math.exp(generator.gauss(0, 1))
        deviation = usable * generator.gauss(0, spread) + 25 * max(0.0, 8.0 - block)
        reading = Reading(25.0 * block, target, weight, weight * generator.choice([0.1, 1.0, 10.0]))
        yield BlockSums(25.0, usable, deviation), reading


def test_floats_and_tensors_give_the_same_monitor():
    law = read_traits(cv.PI(18.0, beta_max=3.0))
    floats = [initial_monitor(1.0) for _ in range(3)]
    rows = torch.tensor([pack_values(each) for each in floats], dtype=torch.float64).T
    for blocks in zip(*(random_blocks(seed) for seed in range(3)), strict=True):
        floats = [
            fold(state, sums, reading, law, FLOATS, FLOAT_VECTORS)
            for state, (sums, reading) in zip(floats, blocks, strict=True)
        ]
        sums, reading = (
            kind(*torch.tensor(values, dtype=torch.float64).T)
            for kind, values in zip((BlockSums, Reading), zip(*blocks, strict=True), strict=True)
        )
        state = monitor_state.unpack_tensors(rows)
        rows = pack_tensors(fold(state, sums, reading, law, TENSORS, TENSOR_VECTORS))
        expected = torch.tensor([pack_values(each) for each in floats], dtype=torch.float64).T
        torch.testing.assert_close(rows, expected, rtol=1e-9, atol=1e-12)
    assert unpack_floats(pack_values(floats[0])) == floats[0]


@pytest.mark.parametrize("measured", [17.0, -3.0, math.nan, math.inf, 1e31])
def test_quick_sums_equal_those_of_the_backend(measured):
    sums = BlockSums(3.0, 2.0, 0.5)
    assert observe_float(sums, measured, 18.0) == observe(sums, measured, 18.0, FLOATS)


def measurements(count, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return (18 + torch.randn(count, generator=generator, dtype=torch.float64)).tolist()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_path_keeps_the_same_monitor(monkeypatch, accumulate):
    trace = measurements(140)
    numbers, host, vector, device = (
        cv.Controller(cv.PI(18.0), models=models, accumulate=accumulate)
        for models in (None, None, 1, None)
    )
    for value in trace:
        numbers.step(value)
        host.step(torch.tensor(value, dtype=torch.float64))
        vector.step(torch.tensor([value], dtype=torch.float64))
    monkeypatch.setattr("controlvae.controller.as_host_scalars", lambda value, block: None)
    for value in trace:
        device.step(torch.tensor(value, dtype=torch.float64))
    expected = numbers.state_dict()
    for control in (host, vector, device):
        saved = control.state_dict()
        assert {name: float(value) for name, value in saved.items()} == pytest.approx(expected)


def test_compiled_step_keeps_the_same_monitor():
    torch._dynamo.reset()
    eager, compiled = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0))
    step = torch.compile(compiled.step, fullgraph=True, backend="aot_eager")
    for value in measurements(60):
        step(torch.tensor(value, dtype=torch.float64))
        eager.step(value)
    saved = {name: float(value) for name, value in compiled.state_dict().items()}
    assert saved == pytest.approx(eager.state_dict())


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_resuming_keeps_the_monitor(kind):
    straight, first, second = (cv.Controller(cv.PI(18.0)) for _ in range(3))
    trace = measurements(400)
    for value in trace:
        straight.step(kind(value))
    for value in trace[:137]:
        first.step(kind(value))
    second.load_state_dict(first.state_dict())
    for value in trace[137:]:
        second.step(kind(value))
    assert second.certificate() == straight.certificate()
    assert second.certificate().settled


def test_state_without_a_monitor_starts_one():
    old = cv.Controller(cv.PI(18.0), monitor=False)
    for number in range(500):
        old.step(math.nan if number == 7 else 18.0)
    control = cv.Controller(cv.PI(18.0))
    control.load_state_dict(old.state_dict())
    assert control.stats()["skipped"] == 1
    for _ in range(250):
        control.step(18.0)
    assert control.certificate().since >= 500
    old.load_state_dict(control.state_dict())
    assert old.state.step == 750


def test_one_model_is_saved_with_its_monitor():
    laws = [cv.PI(18.0), cv.Constant(1.0)]
    together, restored = cv.Controller(laws), cv.Controller(laws)
    for value in measurements(300):
        together.step(torch.tensor([value, 2 * value], dtype=torch.float64))
    for model in range(2):
        restored.load_state_dict(together.state_dict(model), model)
    assert restored.certificate() == together.certificate()
    alone = cv.Controller(cv.PI(18.0))
    alone.load_state_dict({name: v.item() for name, v in together.state_dict(0).items()})
    assert alone.certificate() == together.certificate()[0]


def step_often(control, measured, steps):
    for _ in range(steps):
        control.step(measured)


@pytest.mark.parametrize("models", [None, 2])
def test_warning_points_at_the_callers_line(models):
    control = cv.Controller(cv.PI(30.0), models=models)
    measured = 12.0 if models is None else torch.full((models,), 12.0)
    with pytest.warns(cv.ControlWarning, match="out of reach") as caught:
        step_often(control, measured, 500)
    assert all(each.filename == __file__ for each in caught)
    assert len(caught) == (models or 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_warns_without_waiting():
    control = cv.Controller(cv.PI(30.0)).to("cuda")
    kl = torch.tensor(12.0, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.warns(cv.ControlWarning, match="out of reach"):
            step_often(control, kl, 800)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    numbers = cv.Controller(cv.PI(30.0))
    with pytest.warns(cv.ControlWarning):
        step_often(numbers, 12.0, 800)
    saved = {name: float(value) for name, value in control.state_dict().items()}
    assert saved == pytest.approx(numbers.state_dict())
