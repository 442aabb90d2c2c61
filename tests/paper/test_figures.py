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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A few real steps of a small model."""
    path = tmp_path_factory.mktemp("trained") / "run"
    words = [
        "train",
        "shapes2d-quick",
        "--set",
        "training.steps=40",
        "--set",
        "data.images=500",
        "--run",
        path,
    ]
    done = within(*words, "--device", "cpu", cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return load_run(RunFolder(path))


def test_a_figure_of_the_paper_is_the_means_and_sds_of_the_logs(tmp_path):
    ends = {1: 6_000, 2: 6_000, 3: 5_000}  # the third stopped in the middle of a window
    runs = [
        logged_run(tmp_path, "shapes2d-control-16", seed, steps) for seed, steps in ends.items()
    ]
    logged_run(tmp_path, "shapes2d-control-18", 1, 4_000)
    done = within(
        "reproduce",
        "figure-disentangling",
        "--runs",
        tmp_path,
        "--no-train",
        "--device",
        "cpu",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure-disentangling.png").stat().st_size > 10_000
    with (tmp_path / "figure-disentangling.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["preset"] == "shapes2d-control-16"]
    assert [(row["step"], row["seeds"]) for row in rows] == [
        ("2000", "3"),
        ("4000", "3"),
        ("6000", "2"),
    ]
    logs = [[json.loads(line) for line in run.log_file.read_text().splitlines()] for run in runs]
    for window, row in enumerate(rows):
        for column, name in (("reconstruction", "reconstruction"), ("beta", "weight")):
            lines = [log[4 * window : 4 * window + 4] for log in logs if len(log) >= 4 * window + 4]
            means = [statistics.fmean(line[column] for line in four) for four in lines]
            assert float(row[f"{name} mean"]) == pytest.approx(statistics.fmean(means))
            assert float(row[f"{name} sd"]) == pytest.approx(statistics.stdev(means))
    heads = (tmp_path / "figure-disentangling-latents.csv").read_text().splitlines()[0]
    assert heads == "step,target,z1,z2 x,z3 shape"
    # What is not there, or not all there, is said.
    assert "ControlVAE (KL = 16): 3 seeds, 5,000 to 6,000 of 1,500,000 steps." in done.stdout
    assert "ControlVAE (KL = 18): 1 seed, 4,000 of 1,500,000 steps." in done.stdout
    assert "Control-FactorVAE; β-VAE (β = 100); FactorVAE (γ = 10): no runs yet." in done.stdout


def test_short_runs_are_drawn_and_settings_apart_are_said(tmp_path):
    for seed in (1, 2):
        folder = logged_run(
            tmp_path / "paper", "cifar10-vae", seed, 1_500, evaluated=False, elbo=-9.0
        )
        folder.write(override(preset("cifar10-vae"), [f"training.seed={seed}", "data.size=32"]), "")
    logged_run(tmp_path / "own", "cifar10-geco", 1, 1_000, evaluated=False, elbo=-8.0)
    words = [
        "--runs",
        tmp_path / "paper",
        "--no-train",
        "--device",
        "cpu",
        "--beside",
        f"mine={tmp_path / 'own'}",
    ]
    done = within("reproduce", "figure-cifar10", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with (tmp_path / "paper" / "figure-cifar10.csv").open(encoding="utf-8") as file:
        points = [
            (row["method"], row["step"], row["seeds"])
            for row in csv.DictReader(file)
            if row["column"] == "elbo"
        ]
    assert points == [
        *(("VAE", step, "2") for step in ("500", "1000", "1500")),
        *(("mine", step, "1") for step in ("500", "1000")),
    ]
    assert "VAE: 2 seeds, 1,500 of 80,000 steps." in done.stdout
    assert "Not the presets' settings: data.size (all runs)." in done.stdout
    assert (
        "mine is VAE with another data.size, control." in done.stdout
    )  # from the row as it was trained


def test_a_band_that_reaches_zero_is_cut_at_the_bottom_of_its_axis(tmp_path, monkeypatch):
    """In whole: where it comes and goes from window to window, what is left are stripes."""
    betas = {1: [1.0] * 16, 2: [1.5, 1.5, 1.5, 1.5, 90.0, 90.0, 90.0, 90.0] * 2}
    for seed, values in betas.items():
        folder = logged_run(tmp_path, "shapes2d-control-16", seed, 8_000, evaluated=False)
        lines = [
            {**record, "beta": beta} for record, beta in zip(folder.records(), values, strict=True)
        ]
        folder.log_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = []
    monkeypatch.setattr(
        disentangling_figures, "save_figure", lambda figure, path: drawn.append(figure)
    )
    runs = {"shapes2d-control-16": find_runs(tmp_path)}
    disentangling_figures.write_disentangling(FIGURES["figure-disentangling"], runs, tmp_path)
    axis = drawn[0].axes[1]
    (band,) = axis.collections
    (outline,) = band.get_paths()
    assert axis.get_yscale() == "log"
    assert outline.vertices[:, 0].tolist().count(8_000) >= 2
    assert outline.vertices[:, 1].min() == pytest.approx(axis.get_ylim()[0])


def test_a_figure_of_points_has_one_for_every_evaluated_run(tmp_path):
    for seed, (error, mig) in enumerate([(19.0, 0.55), (18.5, 0.3)], start=1):
        folder = logged_run(tmp_path / "paper", "shapes2d-control-16", seed, 1_000)
        folder.metrics_file.write_text(
            json.dumps({**METRICS, "reconstruction": error, "mig_sampled": {"score": mig}})
        )
    logged_run(tmp_path / "paper", "shapes2d-control-18", 1, 1_000, evaluated=False)
    mine = logged_run(tmp_path / "own", "shapes2d-control-17", 3, 1_000)
    mine.metrics_file.write_text(json.dumps({**METRICS, "reconstruction": 12.0}))
    words = [
        "--runs",
        tmp_path / "paper",
        "--no-train",
        "--device",
        "cpu",
        "--beside",
        f"mine={tmp_path / 'own'}",
    ]
    done = within("reproduce", "figure-mig", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ControlVAE (KL = 18); mine: 1 seed, 1,000 of 1,500,000 steps." in done.stdout
    with (tmp_path / "paper" / "figure-mig.csv").open(encoding="utf-8") as file:
        points = [tuple(row.values()) for row in csv.DictReader(file)]
    assert points == [
        ("ControlVAE (KL = 16)", "shapes2d-control-16", "1", "6000", "19.0", "0.55"),
        ("ControlVAE (KL = 16)", "shapes2d-control-16", "2", "6000", "18.5", "0.3"),
        ("mine", "", "3", "6000", "12.0", "0.5"),
    ]


@pytest.mark.parametrize("name", ["figure-disentangling", "figure-traversals", "figure-mig"])
def test_a_figure_without_any_run_says_so(tmp_path, name):
    done = within(
        "reproduce", name, "--runs", tmp_path, "--no-train", "--device", "cpu", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "all methods: no runs yet." in done.stdout
    assert (tmp_path / f"{name}.png").is_file()
    assert name in within("reproduce", cwd=tmp_path).stdout


def test_traversals_of_runs_that_have_not_all_shapes_begin_at_a_picture_they_have(
    trained, tmp_path, monkeypatch
):
    drawn, paper = [], FIGURES["figure-traversals"]
    monkeypatch.setattr(
        disentangling_figures, "save_figure", lambda figure, path: drawn.append(figure)
    )
    runs = {row.preset: [trained.folder] for row in paper.rows[:2]}
    disentangling_figures.write_traversals(
        paper, runs, tmp_path, root=None, device=torch.device("cpu")
    )
    start = traverse_latents(trained, None, [0.0]).start
    assert f"From the code of {start}." in " ".join(drawn[0].axes[-1].texts[0].get_text().split())
    with (tmp_path / "figure-traversals.csv").open(encoding="utf-8") as file:
        assert {row["method"] for row in csv.DictReader(file)} == {
            row.method for row in paper.rows[:2]
        }
