"""Figures of the paper, drawn from run folders."""

import csv
import json
import statistics

import pytest
import torch
from command import within
from logged_runs import METRICS, logged_run

from controlvae.lab.config import override, preset
from controlvae.lab.plots.traversal import traverse_latents
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import load_run
from controlvae.paper import disentangling_figures
from controlvae.paper.figures import FIGURES

EXISTING = ("--no-train", "--device", "cpu")


def read_rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a small model for a few steps."""
    path = tmp_path_factory.mktemp("trained") / "run"
    sets = ["--set", "training.steps=40", "--set", "data.images=500"]
    words = ["train", "shapes2d-quick", *sets, "--run", path, "--device", "cpu"]
    done = within(*words, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return load_run(RunFolder(path))


@pytest.fixture
def drawn(monkeypatch):
    """Collect the figures that would be saved."""
    figures = []

    def collect(figure, path):
        figures.append(figure)

    monkeypatch.setattr(disentangling_figures, "save_figure", collect)
    return figures


def test_curves_are_means_and_deviations_of_logs(tmp_path):
    steps = {1: 6_000, 2: 6_000, 3: 5_000}  # the third seed stopped in the middle of a window
    runs = [logged_run(tmp_path, "shapes2d-control-16", seed, last) for seed, last in steps.items()]
    logged_run(tmp_path, "shapes2d-control-18", 1, 4_000)
    name = "figure-disentangling"
    done = within("reproduce", name, "--runs", tmp_path, *EXISTING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    rows = [
        row for row in read_rows(tmp_path / f"{name}.csv") if row["preset"] == "shapes2d-control-16"
    ]
    points = [(row["step"], row["seeds"]) for row in rows]
    assert points == [("2000", "3"), ("4000", "3"), ("6000", "2")]
    for window, row in enumerate(rows):
        lines = slice(4 * window, 4 * window + 4)
        logs = [records for run in runs if len(records := run.records()[lines]) == 4]
        for column, label in (("reconstruction", "reconstruction"), ("beta", "weight")):
            means = [statistics.fmean(record[column] for record in records) for records in logs]
            assert float(row[f"{label} mean"]) == pytest.approx(statistics.fmean(means))
            assert float(row[f"{label} sd"]) == pytest.approx(statistics.stdev(means))
    heads = (tmp_path / f"{name}-latents.csv").read_text().splitlines()[0]
    assert heads == "step,target,z1,z2 x,z3 shape"
    # Missing and unfinished runs are listed.
    assert "ControlVAE (KL = 16): 3 seeds, 5,000 to 6,000 of 1,500,000 steps" in done.stdout
    assert "ControlVAE (KL = 18): 1 seed, 4,000 of 1,500,000 steps" in done.stdout
    missing = "Control-FactorVAE; β-VAE (β = 100); FactorVAE (γ = 10): no runs yet"
    assert missing in done.stdout


def test_short_runs_are_drawn_with_changed_settings(tmp_path):
    for seed in (1, 2):
        path = tmp_path / "paper"
        run = logged_run(path, "cifar10-vae", seed, 1_500, evaluated=False, elbo=-9.0)
        changes = [f"training.seed={seed}", "data.size=32"]
        run.write(override(preset("cifar10-vae"), changes), "")
    logged_run(tmp_path / "own", "cifar10-geco", 1, 1_000, evaluated=False, elbo=-8.0)
    words = ["--runs", "paper", *EXISTING, "--method", "mine=own"]
    done = within("reproduce", "figure-cifar10", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = read_rows(tmp_path / "paper" / "figure-cifar10.csv")
    points = [(row["method"], row["step"], row["seeds"]) for row in rows if row["column"] == "elbo"]
    first = [("VAE", step, "2") for step in ("500", "1000", "1500")]
    assert points == [*first, *(("mine", step, "1") for step in ("500", "1000"))]
    assert "VAE: 2 seeds, 1,500 of 80,000 steps" in done.stdout
    assert "differ from the presets: data.size (all runs)" in done.stdout
    # The comparison is with the first row as it was trained, not with its preset.
    assert "mine has the settings of VAE, except data.size, control." in done.stdout


def test_former_option_beside_still_works(tmp_path):
    logged_run(tmp_path / "own", "shapes2d-control-16", 1, 1_000)
    words = ["--runs", "paper", *EXISTING, "--beside", "mine=own"]
    done = within("reproduce", "figure-mig", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--method" in done.stderr
    assert "mine: 1 seed" in done.stdout


def test_band_below_zero_is_cut_at_the_axis(tmp_path, drawn):
    """The band must stay in one piece, not in stripes between windows."""
    weights = {1: [1.0] * 16, 2: [1.5, 1.5, 1.5, 1.5, 90.0, 90.0, 90.0, 90.0] * 2}
    for seed, values in weights.items():
        run = logged_run(tmp_path, "shapes2d-control-16", seed, 8_000, evaluated=False)
        records = [{**r, "beta": beta} for r, beta in zip(run.records(), values, strict=True)]
        run.log_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    runs = {"shapes2d-control-16": find_runs(tmp_path)}
    disentangling_figures.write_disentangling(FIGURES["figure-disentangling"], runs, tmp_path)
    axis = drawn[0].axes[1]
    (band,) = axis.collections
    (outline,) = band.get_paths()
    assert axis.get_yscale() == "log"
    assert outline.vertices[:, 0].tolist().count(8_000) >= 2
    assert outline.vertices[:, 1].min() == pytest.approx(axis.get_ylim()[0])


def test_scatter_plot_has_a_point_per_evaluated_run(tmp_path):
    for seed, (error, mig) in enumerate([(19.0, 0.55), (18.5, 0.3)], start=1):
        run = logged_run(tmp_path / "paper", "shapes2d-control-16", seed, 1_000)
        metrics = {**METRICS, "reconstruction": error, "mig_sampled": {"score": mig}}
        run.metrics_file.write_text(json.dumps(metrics))
    logged_run(tmp_path / "paper", "shapes2d-control-18", 1, 1_000, evaluated=False)
    mine = logged_run(tmp_path / "own", "shapes2d-control-17", 3, 1_000)
    mine.metrics_file.write_text(json.dumps({**METRICS, "reconstruction": 12.0}))
    words = ["--runs", "paper", *EXISTING, "--method", "mine=own"]
    done = within("reproduce", "figure-mig", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ControlVAE (KL = 18); mine: 1 seed, 1,000 of 1,500,000 steps" in done.stdout
    rows = read_rows(tmp_path / "paper" / "figure-mig.csv")
    assert [tuple(row.values()) for row in rows] == [
        ("ControlVAE (KL = 16)", "shapes2d-control-16", "1", "6000", "19.0", "0.55"),
        ("ControlVAE (KL = 16)", "shapes2d-control-16", "2", "6000", "18.5", "0.3"),
        ("mine", "", "3", "6000", "12.0", "0.5"),
    ]


@pytest.mark.parametrize("name", ["figure-disentangling", "figure-traversals", "figure-mig"])
def test_figure_without_runs_is_written(tmp_path, name):
    done = within("reproduce", name, "--runs", tmp_path, *EXISTING, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all methods: no runs yet" in done.stdout
    assert (tmp_path / f"{name}.png").is_file()
    assert name in within("reproduce", cwd=tmp_path).stdout


def test_traversals_of_few_images_start_at_one_of_them(trained, tmp_path, drawn):
    spec = FIGURES["figure-traversals"]
    methods = spec.rows[:2]
    runs = {row.preset: [trained.folder] for row in methods}
    device = torch.device("cpu")
    disentangling_figures.write_traversals(spec, runs, tmp_path, root=None, device=device)
    start = traverse_latents(trained, None, [0.0]).start
    note = " ".join(drawn[0].axes[-1].texts[0].get_text().split())
    assert f"From the code of {start}." in note
    rows = read_rows(tmp_path / "figure-traversals.csv")
    assert {row["method"] for row in rows} == {row.method for row in methods}
