"""Tests of fused updates: the kernel, run by Triton's interpreter, does what the law does on floats."""

import copy
import logging
import math
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are decorated

import numpy as np
import pytest
import torch
from law_cases import LAWS
from law_traces import random_trace

pytest.importorskip("triton")

import controlvae as cv
from controlvae._fused import update as fused
from controlvae._fused.program import group_by_structure
from controlvae._fused.source import table_columns, write_source

UNUSABLE = [math.nan, math.inf, -math.inf, 1e30, -2e30]


@pytest.fixture(autouse=True)
def fuse_on_the_host(monkeypatch):
    """Use kernels on the host, whose interpreter NumPy warns where a GPU returns infinity."""
    monkeypatch.setattr(fused, "_DEVICE_TYPES", {"cuda", "cpu"})
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", cv.ControlWarning)
        yield


@pytest.fixture
def launches(monkeypatch):
    """Return a list that grows by one with each update of a kernel."""
    counted, advance = [], fused.FusedUpdate.advance

    def count(self, *arguments):
        weight = advance(self, *arguments)
        counted.extend([1] * (weight is not None))
        return weight

    monkeypatch.setattr(fused.FusedUpdate, "advance", count)
    return counted


def make_trace(length, seed=0):
    """Return measurements that come near the target of 18, with every kind of unusable one."""
    values = random_trace(seed, length)[-length:]
    for number, value in enumerate(UNUSABLE):
        values[7 + 9 * number] = value
    return values


def assert_same_state(actual, expected):
    """Compare all values of two state dicts: law, monitor and pending measurements."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        pair = (torch.as_tensor(each, dtype=torch.float64) for each in (actual[name], value))
        torch.testing.assert_close(
            *pair, rtol=1e-12, atol=1e-12, equal_nan=True, msg=lambda text, name=name: name + text
        )


def new_target(law):
    """Return another target of the same sign."""
    return -12.0 if law.target == -18.0 else 12.0


def check_loop(law, trace, target=None, **options):
    """Take the same steps with a kernel and with floats, and change the target on the way."""
    by_kernel, by_float = cv.Controller(law, **options), cv.Controller(law, **options)
    for number, value in enumerate(trace):
        if number == len(trace) // 2 and target is not None:
            by_kernel.set_target(target)
            by_float.set_target(target)
        last = number % 7 == 3
        weight = by_kernel.step(torch.tensor(value, dtype=torch.float64), last=last)
        assert weight.item() == pytest.approx(by_float.step(value, last=last), rel=1e-12)
    assert_same_state(by_kernel.state_dict(), by_float.state_dict())
    return by_kernel


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_interpreter_gives_the_numbers_of_floats(law, launches):
    trace = make_trace(160)
    check_loop(law, trace, None if law.open_loop else new_target(law))
    assert len(launches) == len(trace)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_interpreter_gives_the_numbers_of_floats_for_two_models(law, launches):
    traces = [make_trace(80, seed) for seed in (1, 2)]
    control = cv.Controller(law, models=2, monitor=False)
    singles = [cv.Controller(law, monitor=False) for _ in traces]
    for number, values in enumerate(zip(*traces, strict=True)):
        if number == 40 and not law.open_loop:
            control.set_target(new_target(law), model=1)
            singles[1].set_target(new_target(law))
        weights = control.step(torch.tensor(values, dtype=torch.float64))
        expected = [single.step(value) for single, value in zip(singles, values, strict=True)]
        assert weights.tolist() == pytest.approx(expected, rel=1e-12)
    for model, single in enumerate(singles):
        assert_same_state(control.state_dict(model), single.state_dict())
    assert len(launches) == 80


MIXED = [
    cv.PI(18.0),
    cv.Auto(18.0),
    cv.Auto(cv.Linear(2.0, 18.0, steps=50)),
    cv.Constant(4.0),
    cv.Auto(7.0),
    cv.PI(12.0, kp=0.02, beta_max=2.0),
    cv.LogLagrange(5.0),
]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_interpreter_updates_laws_of_several_kinds(accumulate, launches):
    control = cv.Controller(MIXED, accumulate=accumulate)
    singles = [cv.Controller(law, accumulate=accumulate) for law in MIXED]
    traces = [make_trace(100, seed) for seed in range(len(MIXED))]
    for number, values in enumerate(zip(*traces, strict=True)):
        last = number % 10 == 9
        weights = control.step(torch.tensor(values, dtype=torch.float64), last=last)
        pairs = zip(singles, values, strict=True)
        expected = [single.step(value, last=last) for single, value in pairs]
        assert weights.tolist() == pytest.approx(expected, rel=1e-12)
    saved = [control.state_dict(model) for model in range(len(MIXED))]
    for mine, single in zip(saved, singles, strict=True):
        assert_same_state(mine, single.state_dict())
    assert len(launches) == 100


@pytest.mark.parametrize(
    "options", [{"delayed": True}, {"accumulate": 3}, {"accumulate": 4, "monitor": False}], ids=str
)
@pytest.mark.parametrize("law", [cv.PI(18.0), cv.Auto(18.0)], ids=repr)
def test_interpreter_supports_options_of_the_controller(law, options):
    check_loop(law, make_trace(110), 14.0, **options)


# The interpreter reads the bits of a bfloat16 as an integer, so that dtype needs a GPU.
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weight_has_the_dtype_of_the_measurement(dtype, monkeypatch):
    law = cv.PI(18.0, ki=1e3, beta_max=math.inf)  # exceeds the largest float16
    by_kernel, by_torch = cv.Controller(law, models=2), cv.Controller(law, models=2)
    for value in (20.0, 25.0, 900.0, 20.5):
        measured = torch.tensor([value, 17.3], dtype=dtype)
        monkeypatch.setattr(fused, "ENABLED", True)
        weight = by_kernel.step(measured)
        monkeypatch.setattr(fused, "ENABLED", False)
        assert weight.dtype == dtype
        assert weight.equal(by_torch.step(measured))


def test_measurement_may_be_a_strided_view_that_needs_a_gradient(launches):
    table = torch.tensor([[20.0, 0.0], [30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    control = cv.Controller(cv.PI(18.0), models=2)
    weights = control.step(table[:, 0])
    assert weights.tolist() == [cv.Controller(cv.PI(18.0)).step(x) for x in (20.0, 30.0)]
    assert not weights.requires_grad
    assert launches


def test_saved_state_continues_in_the_same_memory():
    control, values = cv.Controller(cv.PID(18.0, kd=0.1)), make_trace(60)
    for value in values[:30]:
        control.step(torch.tensor(value))
    saved, address = control.state_dict(), control._block.data_ptr()
    first = [control.step(torch.tensor(value)).item() for value in values[30:]]
    control.load_state_dict(saved)
    assert [control.step(torch.tensor(value)).item() for value in values[30:]] == first
    assert control._block.data_ptr() == address


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda control: pickle.loads(pickle.dumps(control))]
)
def test_copy_builds_its_own_kernel(duplicate):
    control = cv.Controller(cv.PI(18.0))
    control.step(torch.tensor(20.0))
    other = duplicate(control)
    assert other._fused._kernel is None
    assert other.step(torch.tensor(25.0)).equal(control.step(torch.tensor(25.0)))


def test_write_of_a_kernel_is_seen_by_autograd():
    control = cv.Controller(cv.PI(18.0))
    control.step(torch.tensor(20.0))
    version = control._block._version
    control.step(torch.tensor(20.0))
    assert control._block._version > version


def find_kinds(laws):
    control = cv.Controller(laws)
    return group_by_structure(control._layout, control._rows), control._rows.pending.start


@pytest.mark.parametrize("law", [cv.Auto(18.0), cv.PI(18.0), cv.Geco(18.0)], ids=repr)
def test_targets_share_a_kernel(law):
    kinds, row = find_kinds([replace(law, target=3.5 + model) for model in range(25)])
    assert len(kinds) == 1
    assert [3.5 + model for model in range(25)] in [list(c) for c in table_columns(kinds[0])]
    one, other = (write_source(find_kinds([each])[0], row, interpreted=False) for each in pair(law))
    assert one == other


def pair(law):
    """Return two laws of different targets that no other number of a law equals."""
    return replace(law, target=18.0), replace(law, target=27.5)


@dataclass(frozen=True)
class CustomLaw(cv.PI):
    """User-supplied law, which may read a number from the device."""

    def proportional(self, target, measured, xp):
        return 0.01 * float(measured > target)


def test_custom_law_is_not_fused(launches):
    control = cv.Controller(CustomLaw(18.0))
    assert control.step(torch.tensor(20.0)) > 0
    assert not launches


def test_transformed_and_disabled_steps_are_not_fused(launches, monkeypatch):
    control = cv.Controller(cv.PI(18.0))

    def loss(kl):
        return control.step(kl) * kl

    expected = cv.Controller(cv.PI(18.0)).step(20.0)
    assert torch.func.grad(loss)(torch.tensor(20.0)).item() == pytest.approx(expected)
    monkeypatch.setattr(fused, "ENABLED", False)
    control.step(torch.tensor(20.0))
    assert not launches


def test_compiled_step_is_not_fused(launches):
    control = cv.Controller(cv.PI(18.0), models=2)
    step = torch.compile(control.step, fullgraph=True, backend="eager")
    measured = torch.tensor([20.0, 30.0], dtype=torch.float64)
    assert step(measured).tolist() == [cv.Controller(cv.PI(18.0)).step(x) for x in (20.0, 30.0)]
    assert not launches


def test_failure_of_triton_falls_back_to_torch(monkeypatch, caplog):
    attempts = []

    def fail(source):
        attempts.append(source)
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(fused, "load_kernel", fail)
    control, single = cv.Controller(cv.PI(18.0), models=1), cv.Controller(cv.PI(18.0))
    with caplog.at_level(logging.WARNING, logger="controlvae"):
        for value in (20.0, 25.0, 30.0):
            assert control.step(torch.tensor([value])).item() == pytest.approx(single.step(value))
    assert len(attempts) == len(caplog.records) == 1
    assert "no C compiler" in caplog.text


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import controlvae as cv
from controlvae._fused.kernel import load_kernel
from controlvae._fused.program import group_by_structure
from controlvae._fused.source import write_source

def compile_for_hopper(control, accumulates, dtype):
    kinds = group_by_structure(control._layout, control._rows)
    source = write_source(kinds, control._rows.pending.start, interpreted=False)
    names = ["block", "table", "measured", "weight", "kinds", "models", "table_stride"]
    names += ["model_stride", "window", "last", "ACCUMULATES", "DELAYED"]
    types = ["*fp64", "*fp64", dtype, dtype, "*i32", *["i32"] * 5, "constexpr", "constexpr"]
    constants = {(10,): accumulates, (11,): accumulates}
    if len(kinds) == 1:
        types[4], constants[4,] = "constexpr", None
    signature = dict(zip(names, types, strict=True))
    source = ASTSource(fn=load_kernel(source), signature=signature, constexprs=constants)
    options = {"num_warps": 1, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)

mixed = [cv.PI(18.0), cv.Auto(18.0), cv.Constant(4.0), cv.LogLagrange(5.0)]
for control, dtype in (
    (cv.Controller(cv.Auto(18.0)), "*fp32"),
    (cv.Controller(mixed, accumulate=4), "*bf16"),
    (cv.Controller(cv.Sigmoid(steps=10), monitor=False), "*fp16"),
):
    kernel = compile_for_hopper(control, control.accumulate > 1, dtype)
    assert kernel.metadata.num_warps == 1
    assert "approx.f32" not in kernel.asm["ptx"]
print("compiled")
"""


def test_kernels_are_compiled_for_a_gpu_without_one():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "compiled", done.stderr
