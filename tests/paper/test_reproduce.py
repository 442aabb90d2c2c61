"""The command `reproduce` for tables: training, existing runs and errors in its arguments."""

import csv
import statistics

from command import within
from evaluated_runs import mig_run, mig_runs

from controlvae.lab.runs.folder import RunFolder

MIGS = [0.5, 0.56, 0.53]
EXISTING = ("--no-train", "--device", "cpu")


def test_table_shows_mean_deviation_and_difference(tmp_path):
    mig_runs(tmp_path / "shapes2d-control-16", MIGS)
    words = ["reproduce", "table-mig", "--runs", tmp_path, *EXISTING]
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    measured = f"{statistics.fmean(MIGS):.4f} ± {statistics.stdev(MIGS):.4f}"
    row = f"| ControlVAE (KL = 16) | 3 | 1,500,000 | {measured} "
    assert f"{row}(paper 0.5628 ± 0.0222, -0.0328) |" in done.stdout
    assert "| FactorVAE (γ = 10) | – | – | – (paper 0.5625 ± 0.0443) |" in done.stdout
    with (tmp_path / "table-mig.csv").open(encoding="utf-8") as file:
        scores = [(row["seed"], float(row["MIG"])) for row in csv.DictReader(file)]
    assert scores == [("1", 0.5), ("2", 0.56), ("3", 0.53)]
    # The name seed-10 sorts before seed-2, but the first three seeds are used.
    mig_run(tmp_path / "shapes2d-control-16" / "seed-10", 10, 0.4)
    fewer = within(*words, "--seeds", 3, cwd=tmp_path)
    assert row in fewer.stdout, fewer.stderr


def test_table_is_trained_with_changed_settings(tmp_path):
    words = ["reproduce", "table-short", "--only", "shapes2d-short", "--seeds", 1]
    words += ["--runs", "short"]
    changes = ["data.images=400", "training.steps=3", "training.batch=4"]
    sets = [word for change in changes for word in ("--set", change)]
    done = within(*words, *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| ControlVAE (target 16) | 1 | 3 |" in done.stdout
    assert "data.images, training.steps, training.batch (all runs)" in done.stdout
    assert "at step 3 its target is 1 of 16 nats" in done.stdout
    assert "(1 of 1)" in done.stderr  # progress of the evaluation
    run = RunFolder(tmp_path / "short" / "shapes2d-short" / "seed-1")
    experiment = run.experiment()
    assert (experiment.training.steps, experiment.data.images) == (3, 400)
    # A second call finds nothing to do and writes the same table.
    before = run.metrics_file.stat().st_mtime_ns
    assert done.stdout.endswith(within(*words, *sets, cwd=tmp_path).stdout)
    assert run.metrics_file.stat().st_mtime_ns == before
    other_settings = within(*words, cwd=tmp_path)
    assert other_settings.returncode == 2
    assert "choose another --runs" in other_settings.stderr


def test_settings_without_training_are_refused(tmp_path):
    words = ["reproduce", "table-short", "--runs", tmp_path, "--set", "training.steps=3"]
    done = within(*words, "--no-train", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--set" in done.stderr
    assert "--no-train" in done.stderr


def test_invalid_settings_create_no_run(tmp_path):
    words = ["reproduce", "table-laptop", "--set", "control.target=5", "--runs", "runs"]
    done = within(*words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    for part in ("shapes2d-laptop-factor", "'target'", "--only"):
        assert part in done.stderr
    assert not (tmp_path / "runs").exists()


def test_former_names_find_former_runs(tmp_path):
    """Tables, options and run folders of version 0.1 have other names."""
    mig_runs(tmp_path / "shapes2d-priced-18", MIGS)
    done = within("reproduce", "table-prices", "--runs", tmp_path, *EXISTING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "table-weighted" in done.stderr
    row = "| the same with per-latent KL weights | 3 | 1,500,000 |"
    assert row in done.stdout
    assert (tmp_path / "table-weighted.csv").is_file()
