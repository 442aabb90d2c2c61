"""Causes of failure: the stacks, the exchange of initial weights and the report."""

import csv
import importlib
import sys
from pathlib import Path

import pytest
import torch

from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder

ROOT = Path(__file__).parents[2]
TINY = ["data.images=64", "model.channels=(4,4,4)", "model.hidden=16", "training.batch=4"]


@pytest.fixture
def benchmark(monkeypatch):
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_flagged_seeds_are_those_of_the_table(benchmark):
    with (ROOT / "results" / "disentangling" / "fresh-seeds.csv").open() as file:
        flagged = [
            int(row["seed"])
            for row in csv.DictReader(file)
            if row["preset"] == "shapes2d-control-18" and row["failed_label_free"] == "1"
        ]
    assert tuple(flagged) == benchmark("failure_causes").FLAGGED


def test_flagged_and_unflagged_seeds_exchange_weights(benchmark):
    causes = benchmark("failure_causes")
    exchanged = causes.WEIGHT_SEEDS
    assert sorted(exchanged) == sorted(exchanged.values()) == list(causes.SELECTED)
    assert all(seed != weights for seed, weights in exchanged.items())
    assert not any(exchanged[seed] in causes.FLAGGED for seed in causes.FLAGGED)


def test_exchanged_runs_start_from_the_weights_of_the_other_seed(tmp_path, benchmark, monkeypatch):
    causes = benchmark("failure_causes")
    # Nothing but the weights that training starts from is left after steps of rate 1e-30.
    settings = [part for line in [*TINY, "optimiser.rate=1e-30"] for part in ("--set", line)]
    words = ["failure_causes.py", "stack", str(tmp_path), "exchanged", "tf32", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cpu", *settings])
    causes.main()

    def weights(candidate, seed):
        folder = RunFolder(tmp_path / candidate / f"seed-{seed}")
        tensors = checkpoint.load_latest(folder.checkpoints)[0].tensors
        return {name: value for name, value in tensors.items() if name.startswith("model.")}

    seed = causes.WEIGHT_SEEDS[307]
    assert causes.WEIGHT_SEEDS[seed] == 307
    moved, own = weights("exchanged", seed), weights("tf32", 307)
    assert all(torch.allclose(moved[name], value) for name, value in own.items())
    stayed = weights("exchanged", 307)
    assert not all(torch.allclose(stayed[name], value) for name, value in own.items())


def test_report_corrects_exact_tests_by_holm(benchmark, capsys):
    report = benchmark("failure_causes_report")
    before = dict.fromkeys(range(10), 0.5) | dict.fromkeys(range(10, 50), 1.0)
    none = report.mcnemar("none", dict.fromkeys(range(50), 1.0), before)
    same = report.mcnemar("same", before, before)
    assert none.p_value == pytest.approx(2 / 2**10)  # ten of ten changes in one direction
    assert same.p_value == 1.0
    report.print_comparisons([same, none])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("none")
    assert first.endswith(f"Holm {4 / 2**10:.4f}")
    assert second.endswith("Holm 1.0000")


def test_results_agree_with_their_logs(benchmark):
    report, folder = benchmark("failure_causes_report"), ROOT / "results" / "disentangling"
    table = report.read_separations(folder / "failure-causes.csv", "candidate")
    for name, values in table.items():
        courses = report.read_courses(folder / "failure-causes-logs.json.gz", name)
        assert {seed: round(course[60_000], 4) for seed, course in courses.items()} == values
