"""User-supplied methods in the paper's tables and figures: runs, and scores of codes."""

import csv
import os
import statistics

import numpy as np
import pytest
from command import within
from evaluated_runs import mig_run, read_scores, scored_codes

from controlvae.lab.config import override, preset
from controlvae.lab.runs.folder import RunFolder

OPTIONS = ["--runs", "paper", "--no-train", "--device", "cpu"]
CODES = ["--method", "theirs=codes"]


@pytest.fixture
def codes(tmp_path):
    return scored_codes(tmp_path)


def reproduce(folder, name, *methods):
    return within("reproduce", name, *OPTIONS, *methods, cwd=folder)


def test_table_has_rows_of_runs_and_of_codes(tmp_path, codes):
    mig_run(tmp_path / "runs", 1, 0.61)
    done = reproduce(tmp_path, "table-mig", *CODES, "--method", "my own=runs")
    assert done.returncode == 0, done.stderr
    names = ("codes/theirs-0", "codes/theirs-1")
    scores = [read_scores(tmp_path, name)["mig_sampled"]["score"] for name in names]
    measured = f"{statistics.fmean(scores):.4f} ± {statistics.stdev(scores):.4f}"
    assert f"| theirs | 2 | – | {measured} |" in done.stdout
    assert "| my own | 1 | 1,500,000 | 0.6100 |" in done.stdout
    assert "theirs-0.npz, 300 of 300 examples, factors size, kind (unordered)." in done.stdout
    assert "my own has the settings of shapes2d-control-16." in done.stdout


def test_scatter_plot_has_a_point_per_file_of_codes(tmp_path, codes):
    done = reproduce(tmp_path, "figure-mig", *CODES)
    source = "300 of 300 examples, factors size, kind (unordered)"
    assert f"theirs: scores of 2 files of codes ({source})." in done.stdout
    with (tmp_path / "paper" / "figure-mig.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["theirs", "theirs"]
    assert [float(row["reconstruction"]) for row in rows] == [20, 21]
    names = ("codes/theirs-0", "codes/theirs-1")
    scores = [read_scores(tmp_path, name)["mig_sampled"]["score"] for name in names]
    assert [float(row["mig_sampled.score"]) for row in rows] == pytest.approx(scores)


def test_curves_cannot_be_drawn_from_codes(tmp_path, codes):
    done = reproduce(tmp_path, "figure-cifar10", *CODES)
    assert done.returncode == 2
    assert "figure-cifar10 needs runs" in done.stderr


def test_codes_without_factors_are_described(tmp_path, codes):
    means, log_variances, _ = codes
    np.savez(tmp_path / "alone.npz", means=means, log_variances=log_variances)
    assert within("score", "alone.npz", "--device", "cpu", cwd=tmp_path).returncode == 0
    done = reproduce(tmp_path, "table-mig", "--method", "theirs=alone.npz")
    assert "alone.npz, 300 of 300 examples, factors none." in done.stdout, done.stderr
    assert "theirs has no MIG: not measured." in done.stdout


def test_codes_need_current_scores(tmp_path, codes):
    unscored = tmp_path / "codes" / "theirs-2.npz"
    np.savez(unscored, means=np.zeros((9, 2)))
    done = reproduce(tmp_path, "table-mig", *CODES)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "theirs-2.npz" in done.stderr
    assert "controlvae score" in done.stderr
    unscored.unlink()
    # A file with other codes is noticed even if it is older than its scores.
    changed, other = (tmp_path / "codes" / f"theirs-{seed}.npz" for seed in (0, 1))
    dates = changed.stat()
    changed.write_bytes(other.read_bytes())
    os.utime(changed, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    done = reproduce(tmp_path, "table-mig", *CODES)
    assert done.returncode == 2
    assert "theirs-0.npz" in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["control.target=Staircase(0.5, 12, 0.15, 5000)"], "differ in control.target.stop"),
        (["training.seed=2", "optimiser.rate=1e-3"], "differ in optimiser.rate"),
        (["training.seed=2", "training.steps=9"], "differ in training.steps"),
        (["training.log_every=9"], "are both seed 1"),
    ],
)
def test_runs_of_one_name_must_be_seeds_of_one_method(tmp_path, changes, message):
    mig_run(tmp_path / "sweep" / "target=16", 1, 0.61)
    experiment = override(preset("shapes2d-control-16"), changes)
    RunFolder(tmp_path / "sweep" / "other").create(experiment, "")
    done = reproduce(tmp_path, "table-mig", "--method", "mine=sweep")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert "'mine'" in done.stderr


def test_method_names_and_folders_may_contain_equals_signs(tmp_path):
    mig_run(tmp_path / "sweep" / "target=16", 1, 0.61)
    done = reproduce(tmp_path, "table-mig", "--method", "mine (KL = 16)=sweep/target=16")
    assert "| mine (KL = 16) | 1 | 1,500,000 | 0.6100 |" in done.stdout, done.stderr
    for missing in ("mine=sweep/target=61", "mine (KL = 16)=sweep/target=61"):
        assert "sweep/target=61" in reproduce(tmp_path, "table-mig", "--method", missing).stderr


@pytest.mark.parametrize("name", ["VAE|x", " mine", "_mine", "shapes2d-control-16"])
def test_unusable_method_names_are_refused(tmp_path, name):
    mig_run(tmp_path / "runs", 1, 0.61)
    done = reproduce(tmp_path, "table-mig", "--method", f"{name}=runs")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert repr(name) in done.stderr
