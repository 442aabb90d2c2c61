"""Warnings about runs, derived from their logs, events and metrics."""

import json

import pytest
from logged_runs import logged_run

from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.reports.warnings import run_warnings


@pytest.mark.parametrize(
    ("kl", "active", "expected"), [(2.4, 0, True), (2.4, 3, False), (0.01, 0, False)]
)
def test_constant_posterior_is_reported(tmp_path, kl, active, expected):
    folder = logged_run(tmp_path, "shapes2d-quick", 1, 3_000, evaluated=False)
    without = run_warnings(folder, is_training=True)
    folder.metrics_file.write_text(json.dumps({"step": 3_000, "kl": kl, "active_units": active}))
    assert (len(run_warnings(folder, is_training=True)) > len(without)) == expected


@pytest.mark.parametrize(("tc", "is_held"), [(0.0105, True), (0.05, False)])
def test_target_below_the_noise_is_reported(tmp_path, tc, is_held):
    columns = {"tc": tc, "tc_sd": 0.02, "target": 0.01}
    folder = logged_run(tmp_path, "shapes2d-control-factor", 1, 100_000, evaluated=False, **columns)
    (warning,) = run_warnings(folder, is_training=True)
    assert "0.01" in warning
    assert ("off target" in warning) == (not is_held)
    assert ("0.04 nats above" in warning) == (not is_held)
    events = [
        {"event": "target out of reach", "step": 5, "beta": 1.0, "tc": tc, "target": 0.01},
        {"event": "target within noise", "step": 9, "target": 0.01, "sd": 0.02},
    ]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert "target out of reach" in run_warnings(folder, is_training=True)[0]


@pytest.mark.parametrize(
    ("tc", "saturated", "expected"), [(0.17, 0.8, True), (0.17, 0.2, False), (0.295, 0.8, False)]
)
def test_missed_target_at_a_bound_is_reported(tmp_path, tc, saturated, expected):
    columns = {"tc": tc, "tc_sd": 0.02, "target": 0.3, "saturated": saturated}
    folder = logged_run(tmp_path, "shapes2d-control-factor", 1, 2_000, evaluated=False, **columns)
    missed = [w for w in run_warnings(folder, is_training=True) if w.startswith("off its target")]
    assert ["0.17" in warning and "0.30" in warning for warning in missed] == [True] * expected


def test_unfinished_training_is_reported_unless_it_is_running(tmp_path):
    folder = logged_run(tmp_path, "shapes2d-quick", 1, 1_000, evaluated=False)
    assert "step 1,000 of 3,000" in run_warnings(folder)[0]
    assert run_warnings(folder, is_training=True) == []


def test_small_nats_keep_two_digits():
    values = (18.0, 0.3, 0.0012345, -0.012, 0.0)
    assert [format_nats(v) for v in values] == ["18.00", "0.30", "0.0012", "-0.012", "0.00"]
