"""Suite of laws: the judge on hand-made traces, halves, settings and stored traces."""

import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import controlvae as cv

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from laws.judge import LawOutcome, PhaseOutcome, choose_oracle, judge_phase, judge_run
from laws.plants.vectors import LinearVAE
from laws.problem import Problem
from laws.problems import PROBLEMS, half_of
from laws.report import best_of_families, compare, format_rivals
from laws.rivals import all_settings, load_prototype
from laws.store import fingerprint, load_traces, save_traces
from laws.train import train_stack


def first_order(target: float, start: float, steps: int, time: float) -> np.ndarray:
    return target + (start - target) * np.exp(-np.arange(1, steps + 1) / time)


def test_first_order_response_settles_after_three_time_constants():
    trace = first_order(8.0, 0.0, 1_000, 50.0)
    outcome = judge_phase(trace, np.full(1_000, 8.0), blocks_per_window=1)
    assert outcome.settled == pytest.approx(50 * math.log(20), abs=2)
    assert outcome.overshoot < 1e-6
    assert not outcome.has_failed


@pytest.mark.parametrize("factor", [1e-6, 1.0, -1.0, 1e6])
def test_judgement_does_not_depend_on_unit_and_sign(factor):
    trace = first_order(8.0, 0.0, 500, 30.0) + 2 * np.exp(-(((np.arange(500) - 120) / 20) ** 2))
    plain = judge_phase(trace, np.full(500, 8.0))
    scaled = judge_phase(factor * trace, np.full(500, factor * 8.0))
    assert scaled.settled == plain.settled
    assert scaled.overshoot == pytest.approx(plain.overshoot)
    assert abs(scaled.error) == pytest.approx(abs(plain.error), abs=1e-9)


def test_late_excursion_delays_settling():
    trace = np.full(1_000, 8.0)
    trace[600:650] = 10.0
    outcome = judge_phase(trace, np.full(1_000, 8.0))
    assert 650 <= outcome.settled <= 660
    assert outcome.overshoot == pytest.approx(0.25)


def test_passing_through_the_band_at_the_end_is_not_settled():
    trace = np.linspace(12.0, 8.0, 1_000)
    assert judge_phase(trace, np.full(1_000, 8.0)).settled is None
    assert judge_phase(trace[::2], np.full(500, 10.0)).settled is None


def test_offset_of_a_quarter_fails_and_does_not_settle():
    outcome = judge_phase(np.full(100, 6.0), np.full(100, 8.0))
    assert outcome.settled is None
    assert outcome.has_failed
    assert outcome.error == pytest.approx(-0.25)


def test_values_that_are_not_numbers_fail():
    trace = np.full(100, 8.0)
    trace[-1] = np.nan
    assert judge_phase(trace, np.full(100, 8.0)).has_failed


def test_overshoot_is_seen_from_the_level_before_the_phase():
    trace = np.concatenate([np.full(50, 3.0), np.full(50, 4.0)])
    down = judge_phase(trace, np.full(100, 4.0), before=10.0)
    assert down.overshoot == pytest.approx(0.25)
    up = judge_phase(trace, np.full(100, 4.0), before=1.0)
    assert up.overshoot == 0


def test_stated_scale_replaces_the_target():
    outcome = judge_phase(np.full(100, 0.1), np.zeros(100), scale=1.0)
    assert outcome.error == pytest.approx(0.1)
    assert outcome.settled is None


def moving_problem(**settings) -> Problem:
    return Problem("test", "test", LinearVAE, 4.0, 400, moves=((200, 8.0),), window=10, **settings)


def test_phases_are_judged_separately():
    trace = np.concatenate([first_order(4.0, 0.0, 200, 10.0), first_order(8.0, 4.0, 200, 20.0)])
    first, second = judge_run(moving_problem(), trace)
    assert first.settled < second.settled < 80
    first, second = judge_run(moving_problem(unreachable=(0,)), trace)
    assert first is None
    assert second.settled < 80


def test_disturbance_starts_a_phase_without_a_new_target():
    problem = Problem("test", "test", LinearVAE, 4.0, 400, disturbances=(200,), window=10)
    assert set(problem.target_blocks()) == {4.0}
    trace = np.concatenate([np.full(200, 4.0), first_order(4.0, 8.0, 200, 20.0)])
    calm, disturbed = judge_run(problem, trace)
    assert calm.settled == 10
    assert 60 < disturbed.settled < 80
    assert disturbed.overshoot == 0


def test_ramp_is_judged_against_the_moving_target():
    problem = Problem("test", "test", LinearVAE, cv.Linear(2.0, 8.0, steps=100), 200, window=10)
    (outcome,) = judge_run(problem, problem.target_blocks())
    assert outcome.settled == 10
    assert outcome.error == 0


def outcome_of(law: str, *settled: int | None, error: float = 0.0) -> LawOutcome:
    return LawOutcome(
        "vectors", law, tuple((PhaseOutcome(1_000, steps, error, 0.0),) for steps in settled)
    )


def test_oracle_prefers_no_failure_to_speed():
    quick = outcome_of("pi 0.1", 100, 100, None, error=0.5)
    safe = outcome_of("pi 0.001", 300, 400, 500)
    slow = outcome_of("pi 0.0001", 900, 900, 900)
    assert choose_oracle([quick, slow, safe]) is safe


def test_ratio_compares_medians_of_seeds():
    outcomes = [outcome_of("auto", 100, 600, 2_000), outcome_of("pi 0.001", 300, 300, 200)]
    comparison = compare(PROBLEMS[0], outcomes)
    assert comparison.ratio == 2.0
    unsettled = [outcome_of("auto", None, None, 100), outcomes[1]]
    assert compare(PROBLEMS[0], unsettled).ratio == math.inf


def test_names_are_unique_and_both_halves_have_every_kind():
    assert len({each.name for each in PROBLEMS}) == len(PROBLEMS)
    halves = defaultdict(set)
    for problem in PROBLEMS:
        halves[problem.kind].add(half_of(problem))
    assert all(len(each) == 2 for each in halves.values())


def test_names_of_settings_are_unique():
    names = [each.name for each in all_settings()]
    assert len(set(names)) == len(names)


def test_stored_traces_are_read_only_for_the_same_training(tmp_path):
    problem, setting = moving_problem(), all_settings()[1]
    traces = train_stack(problem, [setting.make(problem)], [1], steps=20)
    digest = fingerprint(problem, setting, [1])
    save_traces(tmp_path / "trace.npz", traces, digest)
    np.testing.assert_array_equal(load_traces(tmp_path / "trace.npz", digest).weight, traces.weight)
    assert load_traces(tmp_path / "trace.npz", fingerprint(problem, setting, [2])) is None


def test_prototype_replaces_auto(tmp_path):
    source = "from dataclasses import dataclass\nimport controlvae as cv\n"
    source += "@dataclass(frozen=True)\nclass Mine(cv.Auto):\n    pass\n"
    (tmp_path / "mine.py").write_text(source)
    setting = load_prototype(f"{tmp_path / 'mine.py'}:Mine(beta_init=0.5)")
    law = setting.make(moving_problem())
    assert type(law).__name__ == "Mine"
    assert law.beta_init == 0.5


def test_families_are_represented_by_their_best_setting():
    outcomes = [outcome_of("auto", 200, 200, 200)]
    outcomes += [outcome_of("pi 0.001", 300, 300, 300), outcome_of("pi 0.01", 100, 100, 100)]
    outcomes += [outcome_of("sac 0.01", 150, 150, 150)]
    best = best_of_families(outcomes)
    assert best["best of pi"].law == best["oracle"].law == "pi 0.01"
    assert best["best of sac"].settling == 150
    row = next(line for line in format_rivals({"vectors": outcomes}) if line.startswith("| auto"))
    assert row.split("|")[2:6] == [" 0 of 1 ", " 0 ", " 1 ", " 1 "]
