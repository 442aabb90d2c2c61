"""Figures of the paper, traversals that stand and that move, and names for latents, from run folders."""

import csv
import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command import within
from PIL import Image

from controlvae.lab.config import override, preset
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.evaluation.elbo import measure_step_response
from controlvae.lab.plots.animation import animate_traversal
from controlvae.lab.plots.curves import Trace, plot_beta, plot_controlled_term, plot_latent_kl
from controlvae.lab.plots.figure_files import read_step, save_figure, save_pixels
from controlvae.lab.plots.mutual_information import (
    dominant_factors,
    format_latent,
    plot_mutual_information,
)
from controlvae.lab.plots.samples import make_sample_grid
from controlvae.lab.plots.traversal import plot_traversal, traverse_latents
from controlvae.lab.reports.elbo_bound import BaselinePair, plot_elbo_bound
from controlvae.lab.reports.page import write_report
from controlvae.lab.reports.sections import score_table
from controlvae.lab.reports.sweep import FinalValues, plot_sweep, write_sweep
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.loaded import load_run
from controlvae.paper import disentangling_figures
from controlvae.paper.printed import FIGURES

LATENTS = [0.001, 3.0, 1.5]  # nats
METRICS = {
    "step": 6_000,
    "kl_per_latent": LATENTS,
    "mig_sampled": {"score": 0.5},
    "rmig": {
        "score": 0.4,
        "per_factor": {"shape": 0.1, "x": 0.7},
        "mutual_information": [[0.0, 0.02, 0.6], [0.001, 2.5, 0.4]],
        "estimator": "RMIG with 100 bins",
    },
}


def logged_run(path, name, seed, steps, evaluated=True, **columns):
    """A run folder with a log whose values differ from line to line and from seed to seed."""
    folder = RunFolder(path / name / f"seed-{seed}")
    folder.create(override(preset(name), [f"training.seed={seed}"]), "controlvae train ...")
    values = np.random.default_rng(seed).uniform(10, 20, (steps // 500, 2))
    records = [
        {
            "step": 500 * (place + 1),
            "reconstruction": reconstruction,
            "beta": beta,
            "kl": 4.5,
            "target": 5.0,
            "kl_per_latent": LATENTS,
            **columns,
        }
        for place, (reconstruction, beta) in enumerate(values.tolist())
    ]
    folder.log_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    if evaluated:
        folder.metrics_file.write_text(json.dumps(METRICS))
    return folder


def test_seeds_of_one_experiment_have_their_mean_and_spread_and_others_none(tmp_path):
    migs = [0.5, 0.56, 0.59]
    folders = [logged_run(tmp_path, "shapes2d-quick", seed, 1_000) for seed in (1, 2, 3)]
    for folder, mig in zip(folders, migs, strict=True):
        folder.metrics_file.write_text(json.dumps({**METRICS, "mig_sampled": {"score": mig}}))
    expected = (
        f"<td>mean ± sd of 3 seeds</td><td>{np.mean(migs):.3f} ± {np.std(migs, ddof=1):.3f}</td>"
    )
    assert expected in score_table(["a", "b", "c"], folders)
    folders[2].metrics_file.unlink()
    other = logged_run(tmp_path, "shapes2d-control-16", 3, 1_000)
    for mixed in (folders, [*folders[:2], other]):
        assert "mean ±" not in score_table(["a", "b", "c"], mixed)


def test_a_spike_in_the_first_steps_leaves_the_way_to_the_set_point_legible(tmp_path):
    folder = logged_run(tmp_path, "shapes2d-quick", 1, 20_000)
    first, *rest = folder.log_file.read_text().splitlines()
    folder.log_file.write_text(
        "\n".join([json.dumps({**json.loads(first), "kl": 60_000.0}), *rest]) + "\n"
    )
    low, high = (
        plot_sweep({"one": [folder]}, {"one": [None]}, "the training batches").axes[-1].get_ylim()
    )
    assert 4 < low < 4.5  # all else lies between the KL of 4.5 and its target of 5
    assert 5 < high < 5.5


def test_a_sweep_says_what_its_fid_is_of(tmp_path):
    """Of samples and reference pictures counted apart, on another split than the ELBO, with one run that has none."""
    record = {
        "pictures": 50,
        "reference_pictures": 1_200,
        "split": "test",
        "extractor": "Inception",
        "resize": "to 299",
        "of": "samples",
        "samples": {"score": 71.5, "estimator": "FID"},
    }
    runs = {}
    for name, fids in (
        ("a", [record, {**record, "pictures": 60}]),
        ("b", [{"skipped": "not asked for"}]),
    ):
        runs[name] = [
            logged_run(tmp_path / name, "cifar10-vae", seed, 3_000, elbo=-9.0)
            for seed in range(len(fids))
        ]
        for folder, fid in zip(runs[name], fids, strict=True):
            kid = {"samples": {"score": 0.1, "estimator": "KID"}}
            measured = {
                "step": 3_000,
                "examples": 900,
                "split": "all",
                "kl": 3.0,
                "reconstruction": 6.0,
                "elbo": -9.0,
            }
            folder.metrics_file.write_text(json.dumps({**measured, "fid": fid, "kid": kid}))
    write_sweep(runs, tmp_path)
    a, b = csv.DictReader((tmp_path / "sweep.csv").open())
    heads = [
        f"fid {name}"
        for name in ("mean", "pictures", "reference pictures", "split", "extractor", "resize")
    ]
    assert [a[head] for head in heads] == ["71.5", "50; 60", "1200", "test", "Inception", "to 299"]
    assert [b[head] for head in heads] == [""] * 6
    ends = {
        name: [FinalValues(3.0, 6.0, -9.0, 1.0, 71.5) for _ in own] for name, own in runs.items()
    }
    panel = plot_sweep(runs, ends, "900 examples").axes[2]
    of = "samples against 1,200 examples (test)"
    assert (panel.get_ylabel(), panel.get_title("left")) == ("FID", f"50 {of} or 60 {of}")


@pytest.mark.parametrize("d", [1.0, 8.0, 40.0])
def test_the_grey_band_ends_where_the_papers_does_wherever_the_runs_lie(d):
    """At 10 nats: 2 + 2 sqrt(2 * 10 + 1), above the plain VAE's."""
    left, right = plot_elbo_bound(
        [BaselinePair("one", 1, 10.0, d, 0.5)], ["one"], "the training batches"
    ).axes
    (band,) = (patch for patch in right.patches if patch.get_label() == "the paper's band")
    assert (band.get_x(), band.get_width()) == pytest.approx((0, 2 + 2 * 21**0.5))
    for axis in (left, right):
        assert axis.get_xlim()[1] > max(d, 2 + 2 * 21**0.5)


@pytest.mark.parametrize(
    ("kl", "active", "told"), [(2.4, 0, True), (2.4, 3, False), (0.01, 0, False)]
)
def test_a_code_with_nats_that_are_alike_for_all_examples_is_called_out(tmp_path, kl, active, told):
    folder = logged_run(tmp_path, "shapes2d-quick", 1, 3_000, evaluated=False)
    folder.metrics_file.write_text(json.dumps({"step": 3_000, "kl": kl, "active_units": active}))
    assert ("the code tells nothing" in " ".join(run_warnings(folder, is_training=True))) == told


@pytest.mark.parametrize(
    ("tc", "words"), [(0.0105, "the mean is on target"), (0.05, "lies 0.04 nats above")]
)
def test_a_total_correlation_below_its_noise_is_held_only_where_its_mean_is(tmp_path, tc, words):
    columns = {"tc": tc, "tc_sd": 0.02, "target": 0.01}
    folder = logged_run(tmp_path, "shapes2d-control-factor", 1, 100_000, evaluated=False, **columns)
    (said,) = run_warnings(folder, is_training=True)
    assert "the target 0.01 lies below the noise of the estimate" in said
    assert words in said
    assert ("off target" in said) == (tc > 0.02)
    events = [
        {"event": "target out of reach", "step": 5, "beta": 1.0, "tc": tc, "target": 0.01},
        {"event": "target within noise", "step": 9, "target": 0.01, "sd": 0.02},
    ]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert run_warnings(folder, is_training=True)[0].startswith(
        "target out of reach: from about step 5 on"
    )


@pytest.mark.parametrize(
    ("tc", "saturated", "said"), [(0.17, 0.8, True), (0.17, 0.2, False), (0.295, 0.8, False)]
)
def test_a_short_run_that_ends_at_its_bound_and_off_its_target_is_called_out(
    tmp_path, tc, saturated, said
):
    columns = {"tc": tc, "tc_sd": 0.02, "target": 0.3, "saturated": saturated}
    folder = logged_run(tmp_path, "shapes2d-control-factor", 1, 2_000, evaluated=False, **columns)
    found = [
        line for line in run_warnings(folder, is_training=True) if line.startswith("off its target")
    ]
    assert ["0.17 instead of 0.30" in line for line in found] == [True] * said


def test_small_nats_keep_two_digits():
    assert [format_nats(value) for value in (18.0, 0.3, 0.0012345, -0.012, 0.0)] == [
        "18.00",
        "0.30",
        "0.0012",
        "-0.012",
        "0.00",
    ]


def test_a_page_of_runs_that_differ_says_which_is_which(tmp_path):
    measured = {
        "examples": 500,
        "split": "all",
        "likelihood": "squares",
        "elbo": -9.0,
        "reconstruction": 6.0,
        "kl": 3.0,
        "active_units": 2,
        "step_response": None,
    }
    truth = {
        "names": ["shape", "x"],
        "unordered": ["shape"],
        "constant": ["y"],
        "examples": 400,
        "split": "all",
    }
    scores = {
        "ground_truth": truth,
        "dci": {
            "disentanglement": 0.25,
            "completeness": 0.5,
            "informativeness": 0.75,
            "estimator": "trees",
        },
    }
    few = {
        "examples": 200,
        "mig_sampled": {"skipped": "none of the factors is a quantity"},
        "rmig": {"skipped": "why"},
    }
    for path, sets, metrics in (("a", [], scores), ("b", ["data.images=200"], few), ("c", [], {})):
        folder = RunFolder(tmp_path / path)
        folder.create(override(preset("shapes2d-quick"), sets), "")
        folder.metrics_file.write_text(
            json.dumps({"step": 9, "kl_per_latent": LATENTS, **measured, **metrics})
        )
    runs = [RunFolder(tmp_path / name) for name in "abc"]
    page = write_report(runs, tmp_path / "all.html").read_text().replace(str(tmp_path) + "/", "")
    assert (
        "not to be compared: a and c on Shapes2D(size=32, images=20000); b on Shapes2D(size=32, images=200)."
        in page
    )
    assert (
        "<br>a; c: Measured on 500 examples, 1 sample of z for each.<br>b: Measured on 200 examples"
        in page
    )
    assert (
        "<tr><td>a</td><td>0.250</td><td>0.500</td><td>0.750</td></tr><tr><td>b</td><td>–</td>"
        in page
    )
    assert (
        "a: Scores of 400 examples, over shape, x. No quantity, so left out of the sampled MIG"
        in page
    )
    assert "Left out because they do not vary: y. trees.<br>" in page
    assert "b: No MIG, sampled: none of the factors is a quantity. No RMIG: why." in page
    alike = write_report(runs[::2], tmp_path / "two.html").read_text()
    assert "not to be compared" not in alike
    assert "Disentanglement" not in write_report(runs[1:], tmp_path / "none.html").read_text()


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


def test_rows_of_a_traversal_are_ordered_by_kl_and_move_one_latent(trained):
    shown = traverse_latents(trained, 7, [-3.0, 0.0, 3.0])
    assert shown.kl == sorted(shown.kl, reverse=True)
    assert sorted(shown.latents) == list(range(trained.model.latents))
    with torch.no_grad():
        code = trained.model.encode(trained.examples.batch(torch.tensor([7]))).mean
        code[0, shown.latents[1]] = 3.0
        picture = torch.sigmoid(trained.model.decode(code))[0, 0].numpy()
    np.testing.assert_allclose(shown.images[1, 2, ..., 0], picture, atol=1e-6)
    words = plot_traversal(trained, image=7, rows=1).axes[0].get_xlabel()
    assert words.startswith(
        "value of the latent; that of largest KL out of 10\nfrom the code of picture 7; KL over"
    )


def test_an_animation_goes_there_and_back_for_ever(trained, tmp_path):
    path = animate_traversal(trained, tmp_path / "figures" / "traversal.gif")
    with (
        Image.open(animate_traversal(trained, tmp_path / "two.gif", rows=2)) as two,
        Image.open(path) as gif,
    ):
        assert two.width < gif.width
        frames = [
            np.asarray((gif.seek(number), gif.convert("L"))[1]) for number in range(gif.n_frames)
        ]
        assert (gif.n_frames, gif.info["loop"]) == (60, 0)
    assert all(np.array_equal(frames[k], frames[-k]) for k in range(1, 30))
    assert not np.array_equal(frames[0], frames[30])


def test_a_latent_is_named_by_the_factor_it_tells_most_about():
    assert dominant_factors(METRICS) == [None, "x", "shape"]
    # By the share of its entropy: of ln 3 and ln 32 nats, 0.6 is more than 1.2. Below 0.1 nats none is told.
    told = {
        **METRICS["rmig"],
        "mutual_information": [[0.09, 0.6, 0.0], [0.0, 1.2, 2.5]],
        "entropies": [1.1, 3.5],
    }
    assert dominant_factors({"rmig": told}) == [None, "shape", "x"]
    assert dominant_factors({"step": 3, "kl_per_latent": LATENTS}) == []
    axis = plot_mutual_information(METRICS).axes[0]
    assert [text.get_text() for text in axis.texts] == [
        "0.02",
        "0.60",
        "0.00",
        "2.50",
        "0.40",
        "0.00",
    ]  # by KL
    assert [label.get_text() for label in axis.get_yticklabels()] == ["shape", "x"]


@pytest.mark.parametrize("latents", [2, 10, 500])
def test_a_heat_map_of_any_number_of_latents_fits_a_page(latents):
    told = {
        "per_factor": {"x": 0.1},
        "mutual_information": [[0.001] * latents],
        "estimator": "an estimator " * 8,
    }
    figure = plot_mutual_information({"kl_per_latent": [0.5] * latents, "rmig": told})
    figure.draw_without_rendering()
    assert figure.bbox_inches.width < 12
    words = [*figure.texts, figure.axes[0].xaxis.label, *figure.axes[0].get_yticklabels()]
    corners = np.concatenate([text.get_window_extent().get_points() for text in words])
    assert (corners >= -0.5).all()
    assert (corners <= figure.bbox.max + 0.5).all()
    (mesh,) = figure.axes[0].collections
    assert mesh.get_facecolors()[:, :3].min() > 0.9  # of what tells next to nothing


@pytest.mark.parametrize(
    ("count", "rest"), [(10, ["2 below 0.01 nats"]), (200, ["181 others", "8 below 0.01 nats"])]
)
def test_the_legend_of_any_number_of_latents_fits_its_figure(count, rest):
    nats = [0.1 * (latent + 1) for latent in range(count - (2 if count == 10 else 8))]
    log = [{"step": step, "kl_per_latent": nats + [0.0] * (count - len(nats))} for step in (1, 2)]
    figure = plot_latent_kl(Trace("run", log))
    figure.draw_without_rendering()
    legend, page = figure.axes[0].get_legend(), figure.bbox
    extent = legend.get_window_extent()
    assert extent.y0 >= page.y0
    assert extent.x1 <= page.x1
    words = [text.get_text() for text in legend.get_texts()]
    assert words[-len(rest) :] == rest
    assert words[0] == format_latent(len(nats) - 1, [])  # the one most in use


@pytest.mark.parametrize("length", [12, 90])
def test_the_legend_of_many_runs_fits_its_figure_and_covers_no_line(length):
    log = [{"step": step, "kl": 3.0, "target": 4.0} for step in (1, 2)]
    figure = plot_controlled_term([Trace(f"{run:0{length}}", log) for run in range(25)])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    extent, page = legend.get_window_extent(), figure.bbox
    assert (page.x0 <= extent.x0, extent.x1 <= page.x1, extent.y1 <= page.y1) == (True, True, True)
    assert extent.y0 >= figure.axes[0].bbox.y1


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([(10, 100, 0.0), (100, 50, 0.0)], ["target"]),  # the shorter one has more lines
        (
            [(1, 3_100, 0.01), (1, 1_400, 0.01)],
            ["target"],
        ),  # a ramp, and a run still on its way up it
        ([(10, 100, 0.0), (10, 100, 0.1)], ["target of 0", "target of 1"]),
    ],
    ids=str,
)
def test_a_set_point_that_runs_share_is_one_line_as_long_as_the_longest(runs, labels):
    traces = [
        Trace(
            str(number),
            [
                {"step": every * n, "kl": 1.0, "target": 5.0 + slope * every * n}
                for n in range(1, lines)
            ],
        )
        for number, (every, lines, slope) in enumerate(runs)
    ]
    drawn = [
        line
        for line in plot_controlled_term(traces).axes[0].lines
        if str(line.get_label()).startswith("target")
    ]
    assert sorted(line.get_label() for line in drawn) == labels
    assert max(line.get_xdata()[-1] for line in drawn) == max(
        every * (lines - 1) for every, lines, _ in runs
    )


def test_parts_of_a_weight_are_drawn_where_they_add_up_to_it():
    records = [
        {"step": 10 * n, "beta": 0.01 * n, "p": -2.0, "i": -3.0, "target": 4.0} for n in range(1, 5)
    ]
    [plain], [logarithmic] = (plot_beta([Trace("a", records)], law).axes for law in (False, True))
    assert [len(axis.lines) for axis in (plain, logarithmic)] == [3, 1]
    assert logarithmic.get_yscale() == "log"
    assert logarithmic.get_ylim()[0] > 0


def test_a_page_shows_what_moves_and_follows_the_quantity_that_is_held(trained, tmp_path):
    animate_traversal(trained, trained.folder.figures / "traversal.gif")
    page = write_report([trained.folder], tmp_path / "report.html").read_text()
    assert "data:image/gif;base64," in page
    assert "Total correlation on the training batches" not in page
    held = logged_run(
        tmp_path, "shapes2d-control-16", 1, 4_000, evaluated=False, tc=0.2, p=0.0, i=0.0
    )
    assert (
        "Total correlation on the training batches"
        in write_report([held], tmp_path / "tc.html").read_text()
    )


def test_pictures_say_which_step_they_are_of_and_a_page_tells(trained, tmp_path):
    earlier = replace(trained, step=7)
    paths = [
        animate_traversal(earlier, tmp_path / "traversal.gif"),
        save_figure(plot_traversal(earlier), tmp_path / "traversal.png", step=7),
        save_pixels(make_sample_grid(earlier), tmp_path / "samples.png", step=7),
    ]
    assert [read_step(path) for path in paths] == [7, 7, 7]
    assert read_step(save_pixels(make_sample_grid(earlier), tmp_path / "bare.png")) is None
    trained.folder.figures.mkdir(exist_ok=True)
    shutil.copy(paths[0], trained.folder.figures / "traversal.gif")
    within(
        "report",
        trained.folder.path,
        "--device",
        "cpu",
        "--out",
        tmp_path / "page.html",
        cwd=tmp_path,
    )
    page = (tmp_path / "page.html").read_text()
    assert "there and back. At step 7." in page
    assert f"rows are ordered by KL. At step {trained.step:,}." in page


@pytest.mark.parametrize(
    ("sets", "title"),
    [
        (["training.seed=2"], "shapes2d-quick, seed 1, shapes2d-quick, seed 2"),
        (["training.seed=2", "control.target=12"], "one, other"),
        (["training.seed=2", "training.steps=9"], "one, other"),
        ([], "one, other"),
    ],
)
def test_a_page_calls_runs_seeds_where_they_differ_in_nothing_else(
    tmp_path, monkeypatch, sets, title
):
    monkeypatch.chdir(tmp_path)
    for name, more in (("one", []), ("other", sets)):
        RunFolder(Path(name)).create(override(preset("shapes2d-quick"), more), "")
    page = write_report(
        [RunFolder(Path("one")), RunFolder(Path("other"))], Path("report.html")
    ).read_text()
    assert f"<h1>{title}</h1>" in page


@pytest.mark.parametrize(("reach", "labels"), [(3.0, ["−3.0", "+3.0"]), (0.1, ["−0.10", "+0.10"])])
def test_columns_of_a_traversal_are_told_apart(trained, reach, labels):
    ticks = plot_traversal(trained, reach=reach, columns=10).axes[0].get_xticklabels()
    texts = [tick.get_text() for tick in ticks]
    assert (texts[0], texts[-1], len(set(texts))) == (*labels, 10)


def test_the_papers_seed_images_need_all_shapes(trained, tmp_path):
    done = within(
        "traverse", trained.folder.path, "--image", "heart", "--device", "cpu", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "737,280" in done.stderr


def test_a_report_shows_a_run_held_at_a_reconstruction_below_zero(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(
        override(
            preset("cifar10-geco"), ["control=Geco(-900)", "objective.likelihood=Gaussian(0.01)"]
        ),
        "",
    )
    record = {
        "elbo": 800.0,
        "kl": 90.0,
        "target": -900.0,
        "beta": 0.9,
        "p": 0.0,
        "i": -0.1,
        "saturated": 0.0,
        "reconstruction_sd": 5.0,
        "kl_per_latent": [1.0, 0.5],
    }
    lines = [{"step": 500 * n, "reconstruction": -885.0 - n, **record} for n in range(1, 30)]
    folder.log_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "not finished: step 14,500 of 80,000" in page
    assert measure_step_response(folder)["settling_time"] == 500.0
