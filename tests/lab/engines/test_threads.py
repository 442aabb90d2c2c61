"""CPU threads: measuring leaves no trace, and an idle team of threads switches spinning off."""

import os
import random
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from controlvae.lab.config import override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines import spinning, threads
from controlvae.lab.engines.eager import EagerEngine

TINY = ["data.images=128", "training.batch=8", "model.channels=(4,4,4)", "model.hidden=16"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads():
    with threads.use_threads(2):
        yield


def make(sets=(), name="shapes2d-quick", seeds=(1,)):
    base = override(preset(name), [*(TINY if name.startswith("shapes") else ()), *sets])
    experiments = [override(base, [f"training.seed={seed}"]) for seed in seeds]
    return EagerEngine(experiments, load_dataset(base.data), CPU)


def draw_from_all():
    return [random.random(), np.random.rand(), torch.rand(1).item()]


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["control=Auto(18)"],
        ["control=Geco(20)", "optimiser.rate=Points((1, 9), (1e-3, 1e-4))"],
        ["objective=TotalCorrelation()", "control=PI(0.1)"],
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [0, 7])
def test_measuring_leaves_engine_and_generators_untouched(sets, first):
    measured, plain = make(sets, seeds=(1, 2)), make(sets, seeds=(1, 2))
    if first:
        assert measured.advance(first).equal(plain.advance(first))
    before = [measured.snapshot(model) for model in range(2)]
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    expected = draw_from_all()
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    rates = threads.measure_threads(measured, 2, 10**6, 10**6)
    assert sorted(rates) == [1, 2]
    assert min(rates.values()) > 0
    assert torch.get_num_threads() == 2
    assert draw_from_all() == expected
    assert measured.step == first
    for model, tensors in enumerate(before):
        after = measured.snapshot(model)
        assert all(after[name].equal(value) for name, value in tensors.items())
    assert measured.advance(20).equal(plain.advance(20))


def test_measuring_leaves_dropout_untouched():
    measured, plain = (make(["model.dropout=0.3"], "text-quick") for _ in range(2))
    assert threads.measure_threads(measured, 1, 10**6, 10**6)
    assert measured.advance(5).equal(plain.advance(5))


def test_short_runs_and_single_threads_are_not_measured():
    engine = SimpleNamespace(step=0)  # has no other attribute: a measurement would raise
    assert threads.measure_threads(engine, 1, 100, 1e9) == {}
    with threads.use_threads(1):
        assert threads.measure_threads(engine, 1, 10**6, 1e9) == {}


class _SleepingEngine:
    """Engine whose step takes a given time with each number of threads."""

    def __init__(self, seconds):
        self.seconds, self.step, self.restored = seconds, 0, 0

    def advance(self, steps):
        time.sleep(steps * self.seconds[torch.get_num_threads()])
        self.step += steps

    def snapshot(self, model):
        return {}

    def restore(self, model, step, tensors):
        self.step, self.restored = step, self.restored + 1


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({1: 0.01, 2: 0.002}, 2), ({1: 0.002, 2: 0.01}, 1), ({1: 0.0101, 2: 0.01}, 1)],
)
def test_fastest_number_is_chosen_and_the_smaller_of_two_equal_ones(seconds, best):
    engine, began = _SleepingEngine(seconds), time.perf_counter()
    rates = threads.measure_threads(engine, 1, 10**6, 1e9)
    assert threads.fastest(rates) == best
    assert engine.step == 0
    assert time.perf_counter() - began < 3
    assert rates[best] == pytest.approx(1 / seconds[best], rel=0.4)


def test_time_of_measuring_is_a_small_share_of_the_run_and_of_the_limit():
    for steps, limit, most in ((2000, 1e9, 0.4), (10**6, 2.0, 0.5)):
        engine, began = _SleepingEngine({1: 0.005, 2: 0.005}), time.perf_counter()
        assert threads.measure_threads(engine, 1, steps, limit)
        assert time.perf_counter() - began < most
    # Two steps with one thread would take longer than the time there is.
    engine = _SleepingEngine({1: 9.0, 2: 0.05})
    assert threads.measure_threads(engine, 1, 600, 1.0) == {}


def test_numbers_set_by_the_user_are_recognised(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    default = threads.available_cores()
    with threads.use_threads(default):
        assert threads.user_threads() is None
        monkeypatch.setenv("OMP_NUM_THREADS", str(default))
        assert threads.user_threads() == default
        monkeypatch.delenv("OMP_NUM_THREADS")
    with threads.use_threads(default + 1):
        assert threads.user_threads() == default + 1


def test_small_text_models_have_one_thread():
    small = override(preset("text-quick"), ["model.width=128"])
    assert threads.model_threads(small) == 1
    assert threads.model_threads(override(small, ["model.width=132"])) is None
    assert threads.model_threads(preset("shapes2d-quick")) is None


# Counts how often threads give up their cores while they wait for each other.
_COUNT_SWITCHES = """
import resource, torch
from controlvae.lab.engines.spinning import cores_released
torch.set_num_threads(2)
x = torch.ones(100_000)

def switches():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(500):
        x.mul_(1.0)
        float(x[0])
        sum(range(2_000))  # the second thread waits meanwhile
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before

switches()
first = switches()
with cores_released(2):
    during = switches()
print(first, during, switches())
"""


@pytest.mark.skipif(spinning._gnu_openmp() is None, reason="needs GNU OpenMP")
def test_idle_team_switches_spinning_off_and_on_again():
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_SWITCHES],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    before, during, after = map(int, done.stdout.split())
    assert during > 200
    assert before < during / 3
    assert after < during / 3


@pytest.mark.skipif(spinning._gnu_openmp() is None, reason="needs GNU OpenMP")
def test_spinning_is_off_exactly_while_threads_wait_for_cores(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(spinning, "_SECONDS_BETWEEN_CHECKS", 0.01)
    clock, load, teams = time.monotonic(), [0.0, 0.0], []

    def queue_times():
        nonlocal clock
        now = time.monotonic()
        load[1] += load[0] * (now - clock)
        clock = now
        return {"1": load[1], "2": 0.0}

    class Team:
        def __init__(self, runtime, threads):
            teams.append("on")

        def close(self):
            teams.append("off")

    monkeypatch.setattr(spinning, "_queue_times", queue_times)
    monkeypatch.setattr(spinning, "_IdleTeam", Team)

    def wait_for(expected):
        deadline = time.monotonic() + 20
        while teams != expected and time.monotonic() < deadline:
            time.sleep(0.01)
        assert teams == expected

    with spinning.release_cores_under_load(2):
        time.sleep(0.1)
        assert teams == []
        load[0] = 0.6
        wait_for(["on"])
        load[0] = 0.0
        wait_for(["on", "off"])
        load[0] = 0.6
        wait_for(["on", "off", "on"])
    assert teams == ["on", "off", "on", "off"]


def test_waiting_policy_of_the_user_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    count = threading.active_count()
    with spinning.release_cores_under_load(2):
        assert threading.active_count() == count
