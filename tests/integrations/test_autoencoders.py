"""Tests with real autoencoders of diffusers and MONAI, and of the plain bottleneck models."""

import importlib
import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch

import controlvae as cv
from controlvae.distributions import Posterior

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "hosts"


@pytest.fixture
def load_task(monkeypatch):
    """Return a function that loads the task of a benchmark by its name."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    # The examples have a helper of the same name, which must stay the one that other tests import.
    spec = importlib.util.spec_from_file_location("common", BENCHMARKS / "common.py")
    common = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(common)
    monkeypatch.setitem(sys.modules, "common", common)
    yield lambda name: importlib.import_module(name).TASK
    torch.set_num_threads(threads)


HOSTS = [
    ("diffusers_image", "diffusers"),
    ("diffusers_audio", "diffusers"),
    ("diffusers_video", "diffusers"),
    ("monai_image", "monai"),
    ("information_bottleneck", "sklearn"),
    ("total_correlation", "sklearn"),
]


@pytest.mark.parametrize(("name", "package"), HOSTS)
def test_controller_weighs_the_rate_of_a_host(load_task, name, package):
    pytest.importorskip(package)
    task = load_task(name)
    step, control = task.make_step(0), cv.Controller(cv.Auto(task.targets[0]))
    replayed = cv.Controller(cv.Auto(task.targets[0]))
    for _ in range(4):
        measured, weight = step(control.step)
        assert math.isfinite(measured)
        assert weight == pytest.approx(replayed.step(measured), rel=1e-5)


def test_monai_rate_reaches_its_target(load_task):
    pytest.importorskip("monai")
    step = load_task("monai_image").make_step(0)
    control = cv.Controller(cv.Auto(1.0))
    measured = [step(control.step)[0] for _ in range(250)]
    assert sum(measured[-50:]) / 50 == pytest.approx(1.0, rel=0.3)


def test_total_correlation_of_independent_latents_is_near_zero(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    pytest.importorskip("sklearn")
    from plain_models import total_correlation

    torch.manual_seed(0)
    wide = Posterior(torch.zeros(64, 4), torch.zeros(64, 4))
    code = wide.sample(torch.randn(64, 4))
    assert total_correlation(wide, code).item() == pytest.approx(0.0, abs=1e-5)
    copies = torch.randn(256, 1).expand(-1, 2)
    copied = Posterior(copies, torch.full((256, 2), -2.0))
    value = total_correlation(copied, copied.sample(torch.randn(256, 2))).item()
    # Correlation of two noisy copies: 1 / (1 + e^-2), and TC = -log(1 - r^2) / 2.
    correlation = 1 / (1 + math.exp(-2))
    assert value == pytest.approx(-math.log(1 - correlation**2) / 2, abs=0.1)
