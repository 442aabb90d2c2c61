"""Tests of the controller: dtypes, synchronisation, compilation, resuming, accumulation, ranks."""

import importlib
import json
import math
import subprocess
import sys
import timeit
from pathlib import Path

import numpy as np
import pytest
import torch
from law_cases import LAWS, TRACE
from torch.utils._python_dispatch import TorchDispatchMode

import controlvae as cv


class NoHostSync(TorchDispatchMode):
    """Mode that fails on any operation that makes the host wait for the device."""

    FORBIDDEN = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.FORBIDDEN:
            raise AssertionError(f"{name} synchronises with the host")
        return func(*args, **(kwargs or {}))


def test_guard_detects_a_synchronisation():
    with pytest.raises(AssertionError, match="synchronises"), NoHostSync():
        torch.tensor(1.0).item()


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_tensor_steps_never_synchronise(law):
    control = cv.Controller(law)
    values = [torch.tensor(x) for x in TRACE]
    with NoHostSync():
        for x in values:
            control.step(x)
        _ = control.beta, control.target, control.state
    assert float(control.state.step) == len(TRACE)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weight_has_the_measurements_dtype_and_no_gradient(law, dtype):
    kl = torch.tensor(20.0, dtype=dtype, requires_grad=True)
    weight = cv.Controller(law).step(kl)
    assert (weight.dtype, weight.device, weight.shape) == (dtype, kl.device, kl.shape)
    (weight * kl).backward()
    assert kl.grad == weight
    assert isinstance(cv.Controller(law).step(20), float)


def test_weight_in_a_graph_survives_later_steps():
    control = cv.Controller(cv.PI(18.0))
    kl = torch.tensor(20.0, dtype=torch.float64, requires_grad=True)
    losses = [control.step(kl) * kl, control.beta * kl, control.step(kl) * kl]
    sum(losses).backward()
    weights = sum(loss.item() for loss in losses) / 20.0
    assert kl.grad.item() == pytest.approx(weights)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_compiled_equals_eager(law):
    # Otherwise earlier laws count as recompilations of the same function.
    torch._dynamo.reset()
    eager, compiled = cv.Controller(law), cv.Controller(law)
    step = torch.compile(lambda kl: compiled.step(kl) * kl, fullgraph=True, backend="aot_eager")
    look = torch.compile(lambda kl: compiled.beta * kl, fullgraph=True, backend="aot_eager")
    for x in TRACE:
        kl = torch.tensor(x)
        torch.testing.assert_close(step(kl), eager.step(kl) * kl, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(look(kl), eager.beta * kl, rtol=1e-12, atol=0, equal_nan=True)


def test_inductor_equals_eager_inside_a_training_step():
    torch._dynamo.reset()
    eager, compiled = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0)).to("cpu")
    step = torch.compile(lambda recon, kl: recon + compiled.step(kl) * kl, fullgraph=True)
    for x in [30.0, 25.0, 22.0, 17.0, 19.0, 18.5]:  # β stays inside its bounds
        recon, kl = torch.tensor(100.0), torch.tensor(x)
        torch.testing.assert_close(step(recon, kl), recon + eager.step(kl) * kl, rtol=1e-6, atol=0)
    assert 0.0 < eager.beta.item() < 1.0
    assert compiled.beta.item() == pytest.approx(eager.beta.item(), rel=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_resuming_changes_nothing(law, kind):
    straight = cv.Controller(law)
    expected = [straight.step(kind(x)) for x in TRACE]
    first, second = cv.Controller(law), cv.Controller(law)
    begun = [first.step(kind(x)) for x in TRACE[:6]]
    saved = first.state_dict()
    for x in TRACE[6:]:  # a saved state is a copy, which later steps must not change
        first.step(kind(x))
    if kind is float:
        saved = json.loads(json.dumps(saved))
    second.load_state_dict(saved)
    assert [float(b) for b in begun + [second.step(kind(x)) for x in TRACE[6:]]] == [
        float(b) for b in expected
    ]


def test_several_models_can_be_saved_before_the_first_step():
    saved = cv.Controller(cv.PI(target=3.0), models=2).state_dict()
    later = cv.Controller(cv.PI(target=3.0), models=2)
    later.load_state_dict(saved)
    assert later.step(torch.tensor([1.0, 9.0])).shape == (2,)


def test_loading_keeps_the_address_of_the_state():
    control = cv.Controller(cv.PI(18.0)).to("cpu")
    address = control.state.beta.data_ptr()
    control.step(torch.tensor(30.0))
    control.load_state_dict(cv.Controller(cv.PI(18.0)).state_dict())
    control.set_target(20.0)
    assert control.state.beta.data_ptr() == address


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("law", [cv.PI(18.0, kp=0.5), cv.PID(18.0, kp=0.02, kd=0.1)], ids=repr)
def test_new_target_changes_beta_by_the_integral_only(law, kind):
    control = cv.Controller(law)
    for x in [25.0] * 30:
        before = float(control.step(kind(x)))
    control.set_target(24.0)
    assert float(control.target) == 24.0
    assert float(control.step(kind(25.0))) - before == pytest.approx(0.001 * 1.0, abs=1e-6)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize(
    "kind", [np.float32, np.array, torch.tensor, lambda x: torch.tensor(x, requires_grad=True)]
)
def test_target_of_any_kind_becomes_a_float(kind):
    for law in (
        cv.LagrangeMultiplier(kind(18.0), alpha=1e-4, beta_init=0.9),
        cv.Capacity(kind(18.0)),
    ):
        control = cv.Controller(law)
        plain = cv.Controller(type(law)(**{**vars(law), "target": 18.0}))
        assert [control.step(18.01) for _ in range(500)] == [plain.step(18.01) for _ in range(500)]
        assert type(control.beta) is float


def test_host_tensors_ignore_the_default_device():
    control, plant = cv.Controller(cv.PI(18.0)), cv.Plant(kl_at_one=12.0, slope=0.4, lag=60)
    expected = cv.simulate(cv.PI(18.0), plant, 100)
    control.step(torch.tensor(20.0))
    with torch.device("meta"):
        control.load_state_dict(control.state_dict())
        assert cv.simulate(cv.PI(18.0), plant, 100) == expected


def test_new_capacity_keeps_bang_bang_control():
    control = cv.Controller(cv.Capacity(10.0, gamma=100.0))
    control.step(12.0)
    control.set_target(20.0)
    assert [control.step(kl) for kl in (12.0, 30.0, 20.0, 5.0)] == [-100.0, 100.0, 0.0, -100.0]
    control.set_target(0.0)
    assert control.step(0.5) == 100.0


def test_new_target_replaces_a_schedule():
    control = cv.Controller(cv.PI(cv.Staircase(0.5, 18.0, 0.15, every=1)))
    control.step(1.0)
    control.set_target(7.0)
    control.step(1.0)
    assert control.stats()["target"] == 7.0


def test_several_models_equal_separate_controllers():
    laws = [cv.PI(16.0), cv.PI(16.0), cv.LagrangeMultiplier(18.0), cv.Constant(4.0)]
    together, apart = cv.Controller(laws), [cv.Controller(law) for law in laws]
    for x in TRACE:
        measured = torch.tensor([x, 2 * x, x, 1.0], dtype=torch.float64)
        expected = [control.step(value) for control, value in zip(apart, measured, strict=True)]
        assert together.step(measured).tolist() == [float(b) for b in expected]
    assert together.stats()["saturated"] == [control.stats()["saturated"] for control in apart]
    assert cv.Controller(cv.PI(16.0), models=3).step(torch.ones(3)).shape == (3,)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_accumulation_updates_once_per_optimiser_step(kind):
    whole, parts = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0), accumulate=4)
    for x in (30.0, 28.0, 26.0):
        weights = {float(parts.step(kind(x + shift))) for shift in (-3.0, -1.0, 1.0, 3.0)}
        assert len(weights) == 1  # one weight for every micro-batch of a step
        assert float(parts.beta) == whole.step(x)
    assert float(parts.state.step) == 3


@pytest.fixture(params=["host", "device"])
def path(request, monkeypatch):
    """Run a test on the float path of host tensors, and on the tensor operations of a GPU."""
    if request.param == "device":
        monkeypatch.setattr("controlvae.controller.as_host_scalars", lambda value, block: None)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("kind", "models"), [(float, None), (torch.tensor, None), (torch.tensor, 1)]
)
def test_last_ends_a_window_early(kind, models):
    whole, parts = (
        cv.Controller(cv.PI(18.0)),
        cv.Controller(cv.PI(18.0), models=models, accumulate=4),
    )
    for _ in range(3):  # epochs of ten micro-batches: windows of four, four and two
        for window in ([30.0, 28.0, 26.0, 24.0], [31.0, 29.0, 27.0, 25.0], [20.0, 22.0]):
            before = float(parts.beta)
            for number, x in enumerate(window, start=1):
                measured = kind(x) if models is None else torch.tensor([x])
                last = np.bool_(number == len(window))
                assert float(parts.step(measured, last=last)) == pytest.approx(before, rel=1e-6)
            assert float(parts.beta) == pytest.approx(whole.step(sum(window) / len(window)))
    assert float(parts.state.step) == 9


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_host_tensor_equals_a_number(law):
    numbers, tensors, vector = cv.Controller(law), cv.Controller(law), cv.Controller(law, models=1)
    for x in TRACE:
        weight = tensors.step(torch.tensor(x, dtype=torch.float64))
        assert weight.item() == numbers.step(x)
        assert vector.step(torch.tensor([x], dtype=torch.float64)).item() == pytest.approx(
            weight.item(), rel=1e-12
        )
    assert {
        name: float(value) for name, value in tensors.state_dict().items()
    } == numbers.state_dict()


@pytest.mark.usefixtures("path")
def test_autograd_detects_an_overwritten_state():
    control, kl = (
        cv.Controller(cv.PI(18.0)),
        torch.tensor(20.0, dtype=torch.float64, requires_grad=True),
    )
    control.step(kl)
    loss = control.state.beta * kl
    control.step(torch.tensor(300.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("path")
def test_pending_sum_is_dropped_without_accumulation():
    begun = cv.Controller(cv.PI(18.0), accumulate=4)
    for _ in range(2):
        begun.step(torch.tensor(100.0))
    after, fresh = cv.Controller(cv.PI(18.0)), cv.Controller(cv.PI(18.0))
    after.load_state_dict(begun.state_dict())
    assert after.step(torch.tensor(20.0)).item() == pytest.approx(fresh.step(20.0), rel=1e-6)
    assert after.state_dict()["pending_count"] == 0


def test_repr_shows_arguments_and_a_new_target():
    control = cv.Controller(cv.Auto(18.0), accumulate=4)
    assert repr(control) == f"Controller({cv.Auto(18.0)!r}, accumulate=4)"
    control.set_target(10.0)
    assert repr(control) == f"Controller({cv.Auto(18.0)!r}, accumulate=4, target moved to 10.0)"
    two = cv.Controller(cv.PI(18.0), models=2, delayed=True, sync_ranks=False)
    assert repr(two).endswith("models=2, sync_ranks=False, delayed=True)")
    two.set_target(12.0, model=1)
    assert repr(two).endswith("target moved to [18.0, 12.0])")
    with torch.device("meta"):
        assert "PI" in repr(cv.Controller(cv.PI(18.0)))


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_delayed_weight_is_that_of_the_previous_batch(kind):
    prompt, late = (cv.Controller(cv.PI(target=3.0), delayed=delayed) for delayed in (False, True))
    first = float(late.beta)
    weights = [
        (float(prompt.step(kind(kl))), float(late.step(kind(kl)))) for kl in (1.0, 9.0, 2.0, 5.0)
    ]
    at_once, after = zip(*weights, strict=True)
    assert after == pytest.approx((first, *at_once[:-1]))


def test_stats_contain_the_terms():
    control = cv.Controller(cv.PI(18.0, beta_min=0.2))
    control.step(25.0)
    stats = control.stats()
    names = {"target", "measured", "error", "p", "i", "beta", "saturated", "skipped"}
    assert set(stats) == names
    assert stats["beta"] == pytest.approx(0.2 + stats["p"] + stats["i"])
    assert (stats["error"], stats["saturated"]) == (-7.0, False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_unusable_micro_batch_affects_its_own_step_only(bad):
    spoilt, other = (cv.Controller(cv.PI(8.0), accumulate=2) for _ in range(2))
    for value in (bad, 3.0, 3.0, 5.0):
        spoilt.step(torch.tensor(value))
        other.step(value)
    assert spoilt.beta.item() == other.beta
    assert spoilt.state_dict()["measured_count"].item() == 1
    assert spoilt.state_dict()["pending_sum"].item() == 0


def test_controller_first_used_in_inference_mode_can_train():
    control, several, other = (
        cv.Controller(cv.PI(8.0)),
        cv.Controller(cv.PI(8.0), models=2),
        cv.Controller(cv.PI(8.0)),
    )
    with torch.inference_mode():
        control.step(torch.tensor(30.0))
        beta = several.beta
    control.step(torch.tensor(30.0))
    several.step(torch.full((2,), 30.0))
    expected = [other.step(30.0) for _ in range(2)]
    assert control.beta.item() == pytest.approx(expected[1])
    assert several.beta.tolist() == pytest.approx([expected[0]] * 2)
    kl = torch.ones(2, requires_grad=True)
    (kl * beta).sum().backward()
    assert torch.equal(kl.grad, beta.float())


def test_float16_weight_is_clamped_to_the_largest_number():
    control = cv.Controller(cv.Constant(1e6))
    assert (
        control.step(torch.tensor(3.0, dtype=torch.float16)).item()
        == torch.finfo(torch.float16).max
    )


def test_each_target_is_checked_by_its_law():
    control = cv.Controller([cv.PI(18.0), cv.Geco(-400.0)])
    control.set_target(torch.tensor([20.0, -500.0]))
    assert control.target.tolist() == [20.0, -500.0]
    with pytest.raises(ValueError, match=r"finite number .*, got nan"):
        control.set_target(torch.tensor([torch.nan, -500.0]))


def test_target_of_one_model_changes_that_model_only():
    laws = [cv.PI(9.0), cv.PI(9.0), cv.Auto(9.0), cv.PID(9.0)]
    together, alone = cv.Controller(laws), [cv.Controller(law) for law in laws]
    for step, measured in enumerate(
        20 * torch.rand(60, 4, generator=torch.Generator().manual_seed(1))
    ):
        if moved := {20: 1, 40: 2}.get(step):
            together.set_target(5.0, moved)
            alone[moved].set_target(5.0)
        betas = torch.stack([control.step(kl) for control, kl in zip(alone, measured, strict=True)])
        torch.testing.assert_close(together.step(measured), betas)
    assert together.target.tolist() == [9.0, 5.0, 5.0, 9.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.step(torch.ones(64)), "average"),
        (lambda c: c.step(torch.tensor(25)), "floating-point tensor, got torch.int64"),
        (lambda c: c.set_target(float("nan")), "got nan"),
        (lambda c: cv.Auto("8"), "must be a number"),
        (lambda c: cv.PI(torch.ones(2)), "must be a number"),
        (lambda c: cv.Controller(cv.PI(18.0), accumulate=1.5), "whole number"),
        (lambda c: cv.Controller(None), "law must be a law"),
        (lambda c: c.load_state_dict({"beta": 1.0}), "missing"),
        (
            lambda c: c.load_state_dict(cv.Controller(cv.Auto(18.0)).state_dict()),
            "same kind of law",
        ),
        (lambda c: cv.Controller(cv.Constant(1.0)).set_target(3.0), "open-loop"),
        (lambda c: c.set_target(3.0, 0), "no model 0"),
        (lambda c: cv.Controller(cv.PI(18.0), models=2).set_target(3.0, -1), "no model -1"),
        (
            lambda c: cv.Controller(cv.PI(18.0), models=2).set_target(torch.ones(3)),
            "one for each of 2 models",
        ),
        (lambda c: cv.Capacity(float("inf")), "finite number below .*, got inf"),
        (lambda c: c.set_target(cv.Linear(1.0, 2.0, 10)), "schedule to the law"),
        (lambda c: cv.Auto(8.0, beta_init=None), "initial weight"),
    ],
)
def test_misuse_raises_with_the_value(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(cv.Controller(cv.PI(18.0)))


def test_float_step_costs_less_than_five_microseconds():
    control = cv.Controller(cv.PI(18.0))
    tries = (
        min(timeit.repeat(lambda: control.step(17.0), number=500, repeat=200)) / 500
        for _ in range(20)
    )
    assert any(best < 5e-6 for best in tries)  # the machine may be busy


RANK = """
import sys, torch
import torch.distributed as dist
import controlvae as cv
rank, store, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
control = cv.Controller(cv.PI(18.0))
for x in (10.0, 30.0, 40.0, float("nan"), 25.0):
    value = x + (1 - 2 * rank)
    beta = control.step(torch.tensor(value, dtype=torch.float64) if kind == "tensor" else value)
print(repr(float(beta)), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_every_rank_ends_with_the_same_beta(tmp_path, kind):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), kind],
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    betas = [float(rank.communicate(timeout=120)[0]) for rank in ranks]
    alone = cv.Controller(cv.PI(18.0))
    for x in (10.0, 30.0, 40.0, float("nan"), 25.0):
        expected = alone.step(x)
    assert betas == [expected, expected]


def test_the_example_that_times_a_step_tells_every_way(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    costs = list(importlib.import_module("overhead").measure_law(cv.PI(18.0), steps=20))
    assert {"a number", "a tensor on the host"} <= {cost.measurement for cost in costs}
    assert all(0 < cost.microseconds < 1e5 for cost in costs)
