"""Tests of the integration with SAELens: a trainer of the same interface, and the real one."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import controlvae as cv
from controlvae.errors import ControlWarning, UserError
from controlvae.integrations.sae_lens import control_l0

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "hosts"
LAW = cv.PI(4.0, ki=0.01, ema=0.3)


def read_state(control):
    return {name: float(value) for name, value in control.state_dict().items()}


class FixedCoefficient:
    """Coefficient of the same interface as SAELens's `CoefficientScheduler`."""

    def __init__(self, value=1.0):
        self.value = value

    def step(self):
        return self.value

    def state_dict(self):
        return {"current_step": 0}

    def load_state_dict(self, state_dict):
        for name, value in state_dict.items():
            setattr(self, name, value)


class FakeSAE(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.cfg = SimpleNamespace(**settings)
        self.hook_sae_acts_post = nn.Identity()


def make_trainer(*names, **settings):
    schedulers = {name: FixedCoefficient() for name in names or ("l0",)}
    return SimpleNamespace(sae=FakeSAE(**settings), coefficient_schedulers=schedulers)


def run_steps(trainer, counts):
    """Pass activations with the given numbers of active latents and return the coefficients."""
    values = []
    for count in counts:
        acts = torch.zeros(3, 16)
        acts[:, :count] = 0.5
        trainer.sae.hook_sae_acts_post(acts)
        values.append(float(trainer.coefficient_schedulers["l0"].step()))
    return values


def test_coefficient_follows_the_number_of_active_latents():
    trainer = make_trainer()
    control_l0(trainer, LAW)
    counts = [9, 8, 6, 3, 4]
    float_control = cv.Controller(LAW)
    expected = [float_control.step(float(count)) for count in counts]
    assert run_steps(trainer, counts) == pytest.approx(expected)


def test_evaluation_keeps_the_coefficient():
    trainer = make_trainer()
    control = control_l0(trainer, LAW)
    run_steps(trainer, [9])
    before = float(control.beta)
    trainer.sae.eval()
    run_steps(trainer, [16, 16])
    assert float(control.beta) == before


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_trainer_state_restores_the_controller(is_loaded_first):
    trainer = make_trainer()
    control = control_l0(trainer, LAW)
    run_steps(trainer, [9, 8, 6])
    saved = trainer.coefficient_schedulers["l0"].state_dict()

    other = make_trainer()
    if is_loaded_first:
        other.coefficient_schedulers["l0"].load_state_dict(saved)
    restored = control_l0(other, LAW)
    if not is_loaded_first:
        other.coefficient_schedulers["l0"].load_state_dict(saved)
    assert read_state(restored) == pytest.approx(read_state(control), nan_ok=True)


def test_state_of_a_fixed_coefficient_is_refused():
    trainer = make_trainer()
    control_l0(trainer, LAW)
    with pytest.raises(UserError, match="control_l0"):
        trainer.coefficient_schedulers["l0"].load_state_dict({"current_step": 3})


@pytest.mark.parametrize(
    ("names", "coefficient"), [(("l0", "l1"), None), (("l0",), "l1"), ((), "l0")]
)
def test_unclear_coefficient_is_refused(names, coefficient):
    trainer = make_trainer(*names)
    if not names:
        trainer.coefficient_schedulers.clear()
    with pytest.raises(UserError, match="coefficient"):
        control_l0(trainer, LAW, coefficient=coefficient)


def test_coefficient_without_effect_is_reported():
    trainer = make_trainer()
    control = control_l0(trainer, cv.Auto(4.0))
    with pytest.warns(ControlWarning, match="stays at 9"):
        run_steps(trainer, [9] * 1_000)
    assert not control.certificate().settled


def test_quadratic_loss_is_refused():
    trainer = make_trainer(jumprelu_sparsity_loss_mode="quadratic")
    with pytest.raises(UserError, match="quadratic"):
        control_l0(trainer, LAW)


@pytest.fixture
def benchmark(monkeypatch):
    """The benchmark of the real trainer."""
    pytest.importorskip("sae_lens")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import sae_lens_l0

    return sae_lens_l0


def test_real_trainer_saves_and_restores_the_controller(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "STEPS", 30)
    trainer = benchmark.make_trainer(0)
    control = control_l0(trainer, LAW)
    trace = benchmark.train(trainer)
    float_control = cv.Controller(LAW)
    expected = [float_control.step(l0) for l0 in trace["l0"]]
    assert trace["weight"][1:] == pytest.approx(expected[:-1])
    trainer.save_trainer_state(tmp_path)

    other = benchmark.make_trainer(1)
    restored = control_l0(other, LAW)
    other.load_trainer_state(tmp_path)
    assert read_state(restored) == pytest.approx(read_state(control), nan_ok=True)


def test_real_trainer_reports_a_saturated_coefficient(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "STEPS", 1_000)
    trainer = benchmark.make_trainer(0, lr=1e-7)  # too low for any coefficient to act
    control_l0(trainer, cv.Auto(4.0))
    with pytest.warns(ControlWarning, match="stays at"):
        benchmark.train(trainer)
