"""Fused updates of a controller on a real GPU, against updates on floats.

Run it alone: `pytest tests/test_gpu_controller.py`.
"""

import math
import os

import pytest
import torch
from law_cases import LAWS
from law_traces import random_trace

import controlvae as cv
from controlvae._fused import update as fused

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def require_gpu():
    """Skip without a GPU, or in a process where another test has chosen Triton's interpreter."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs a separate process: pytest tests/test_gpu_controller.py")
    pytest.importorskip("triton")


@pytest.fixture
def launches(monkeypatch):
    """Return a list that has one entry for each update: True if a kernel did it."""
    counted, advance = [], fused.FusedUpdate.advance

    def count(self, *arguments):
        weight = advance(self, *arguments)
        counted.append(weight is not None)
        return weight

    monkeypatch.setattr(fused.FusedUpdate, "advance", count)
    return counted


def on_gpu(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, device=GPU)


def make_trace(seed, length):
    """Return measurements of which some are unusable."""
    values = random_trace(seed, length)[-length:]
    values[10:50:10] = [math.nan, math.inf, 1e30, -math.inf]
    return values


def new_target(law):
    """Return another target of the same sign."""
    return -12.0 if law.target == -18.0 else 12.0


def assert_same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        pair = [torch.as_tensor(each, dtype=torch.float64).cpu() for each in (actual[name], value)]
        torch.testing.assert_close(
            *pair, rtol=1e-12, atol=1e-12, equal_nan=True, msg=lambda text, name=name: name + text
        )


@pytest.mark.filterwarnings("ignore::controlvae.ControlWarning")
@pytest.mark.parametrize("options", [{}, {"monitor": False}, {"accumulate": 3}], ids=str)
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_kernel_gives_the_numbers_of_floats(law, options, launches):
    gpu, host = cv.Controller(law, **options), cv.Controller(law, **options)
    weights, expected = [], []
    for number, value in enumerate(make_trace(0, 300)):
        if number == 150 and not law.open_loop:
            gpu.set_target(new_target(law))
            host.set_target(new_target(law))
        last = number % 10 == 9
        weights.append(gpu.step(on_gpu(value), last=last))
        expected.append(host.step(value, last=last))
    assert torch.stack(weights).tolist() == pytest.approx(expected, rel=1e-12)
    assert_same_state(gpu.state_dict(), host.state_dict())
    assert launches == [True] * 300


MIXED = [
    cv.PI(18.0),
    cv.Auto(cv.Linear(2.0, 18.0, steps=50)),
    cv.Constant(4.0),
    cv.PI(12.0, kp=0.02, beta_max=2.0),
    cv.LogLagrange(5.0),
]


@pytest.mark.filterwarnings("ignore::controlvae.ControlWarning")
@pytest.mark.parametrize(
    "laws",
    [[cv.Auto(3.0 + model) for model in range(25)], [cv.Auto(18.0)] * 25, MIXED * 5],
    ids=["targets", "equal", "mixed"],
)
def test_captured_graph_updates_25_models(laws, launches):
    control, singles = cv.Controller(laws), [cv.Controller(law) for law in laws]
    traces = torch.tensor([make_trace(model, 200) for model in range(25)], dtype=torch.float64)
    measured = traces[:, 0].to(GPU)
    control.step(measured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight = control.step(measured)
    assert launches == [True, True]
    for single, value in zip(singles, traces[:, 0].tolist(), strict=True):
        single.step(value)
    for values in traces[:, 1:].T:
        measured.copy_(values)
        graph.replay()
        pairs = zip(singles, values.tolist(), strict=True)
        expected = [single.step(value) for single, value in pairs]
        assert weight.tolist() == pytest.approx(expected, rel=1e-12)
    for model, single in enumerate(singles):
        assert_same_state(control.state_dict(model), single.state_dict())


def test_captured_graph_follows_new_targets_and_loaded_states():
    control, host = cv.Controller(cv.Auto(18.0)), cv.Controller(cv.Auto(18.0))
    kl = on_gpu(20.0)
    control.step(kl)
    host.step(20.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight = control.step(kl)
    saved, host_saved = control.state_dict(), host.state_dict()

    def replay(value):
        kl.fill_(value)
        graph.replay()
        assert weight.item() == pytest.approx(host.step(value), rel=1e-12)

    for value in (25.0, 15.0, math.nan, 30.0):
        replay(value)
    control.set_target(7.0)
    host.set_target(7.0)
    for value in (25.0, 15.0, 6.0):
        replay(value)
    control.load_state_dict(saved)
    host.load_state_dict(host_saved)
    for value in (21.0, 19.0):
        replay(value)
    assert_same_state(control.state_dict(), host.state_dict())


def test_first_step_in_a_graph_uses_torch_operations(launches):
    control, host = cv.Controller(cv.PI(18.0)).to(GPU), cv.Controller(cv.PI(18.0))
    kl = on_gpu(20.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight = control.step(kl)
    assert launches == [False]
    for value in (25.0, 15.0):
        kl.fill_(value)
        graph.replay()
        assert weight.item() == pytest.approx(host.step(value), rel=1e-12)
    assert control.step(kl).item() == pytest.approx(host.step(15.0), rel=1e-12)
    assert launches == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weight_has_the_dtype_of_the_measurement(dtype, monkeypatch, launches):
    law = cv.PI(18.0, ki=1e3, beta_max=math.inf)  # exceeds the largest float16
    by_kernel, by_torch = cv.Controller(law, models=2), cv.Controller(law, models=2)
    for value in (20.0, 25.0, 900.0, 20.5):
        measured = on_gpu([value, 17.3], dtype)
        monkeypatch.setattr(fused, "ENABLED", True)
        weight = by_kernel.step(measured)
        monkeypatch.setattr(fused, "ENABLED", False)
        assert weight.dtype == dtype
        assert weight.equal(by_torch.step(measured))
    assert launches == [True] * 4


def test_step_does_not_wait_for_the_device():
    control, kl = cv.Controller(cv.Auto(18.0), models=2), on_gpu([20.0, 10.0], torch.float32)
    control.step(kl)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(60):  # the monitor folds two blocks
            control.step(kl)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_step_on_a_side_stream_follows_its_order():
    control, host = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kl = on_gpu(20.0)
        for value in (20.0, 25.0, 30.0):
            torch.cuda._sleep(1_000_000)
            kl.fill_(value)
            weight = control.step(kl)
            expected = host.step(value)
    stream.synchronize()
    assert weight.item() == pytest.approx(expected, rel=1e-12)
