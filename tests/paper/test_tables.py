"""Tables of the paper filled in from run folders, and the bench, through the command line."""

import csv
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import statistics
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from command import controlvae, ended_after, within
from PIL import Image
from scipy import stats

from controlvae.errors import Interrupted, UserError
from controlvae.lab.api import evaluate as evaluation
from controlvae.lab.api.sweep import split_values
from controlvae.lab.config import PRESETS, override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.select import shared_settings
from controlvae.lab.evaluation.statistics import compare_means
from controlvae.lab.reports.metrics_table import print_metrics
from controlvae.lab.runs.checkpoint import Checkpoint, load_latest, save
from controlvae.lab.runs.folder import RunFolder, mean_of_last_tenth
from controlvae.lab.training import runner
from controlvae.lab.training.display import ConsoleDisplay
from controlvae.lab.training.loop import Run, train_runs
from controlvae.lab.training.runner import RunOptions
from controlvae.lab.training.scheduler import group_compatible, seed_folders, train_all
from controlvae.metrics import mig_histogram
from controlvae.metrics.disentanglement import rmig
from controlvae.paper.printed import TABLES, Row
from controlvae.paper.tables import write_table

MIGS = [0.5, 0.56, 0.53]


def evaluated_run(path, seed, mig):
    folder = RunFolder(path)
    folder.create(
        override(preset("shapes2d-control-16"), [f"training.seed={seed}"]), "controlvae train ..."
    )
    folder.metrics_file.write_text(json.dumps({"step": 1_500_000, "mig_sampled": {"score": mig}}))


def test_every_preset_a_table_names_exists():
    named = {row.preset for table in TABLES.values() for row in table.rows}
    assert named <= set(PRESETS)
    assert all(
        row.printed.keys() <= table.columns.keys()
        for table in TABLES.values()
        for row in table.rows
    )


@pytest.mark.parametrize("name", ["table-laptop", "table-matched", "table-short"])
def test_methods_on_the_same_terms_differ_in_objective_and_law_alone(name):
    terms = [shared_settings(preset(row.preset)) | {"objective": None} for row in TABLES[name].rows]
    assert all(each == terms[0] for each in terms)


def test_tables_of_methods_on_their_own_terms_say_which(tmp_path):
    own = [preset(row.preset) for row in TABLES["table-mig"].rows]
    assert len({experiment.model for experiment in own}) == 3
    for name in ("table-mig", "table-rmig"):
        text = write_table(TABLES[name], {}, tmp_path)
        for experiment in own:
            assert f"{experiment.training.steps:,}" in text
            assert f"{experiment.optimiser.rate:.4f}" in text


def test_the_papers_rmig_rows_average_to_their_last_column():
    for row in TABLES["table-rmig"].rows:
        factors = [row.printed[name].mean for name in ("x", "y", "shape", "scale", "orientation")]
        assert statistics.fmean(factors) == pytest.approx(row.printed["RMIG"].mean, abs=1e-4)


def test_methods_that_differ_in_control_alone_train_side_by_side(tmp_path):
    names = ["shapes2d-control-16", "shapes2d-beta-100", "shapes2d-control-18"]
    made = [
        folder for name in names for folder in seed_folders(preset(name), tmp_path / name, 3, "")
    ]
    groups = [
        {folder.experiment().name for folder in together} for _, together in group_compatible(made)
    ]
    assert groups == [{names[0], names[2]}, {names[1]}]
    again = seed_folders(preset(names[0]), tmp_path / names[0], 3, "")
    assert [folder.experiment().training.seed for folder in again] == [1, 2, 3]


def test_runs_that_lost_their_last_checkpoint_are_trained_on(tmp_path):
    sets = [
        "training.steps=60",
        "training.batch=4",
        "data.images=64",
        "model.channels=(4,4,4)",
        "model.hidden=16",
    ]
    folders = seed_folders(override(preset("shapes2d-quick"), sets), tmp_path, 3, "")
    options = RunOptions.parse("cpu", checkpoint_every="0s")
    train_all(folders, options)
    assert list(group_compatible(folders)) == []
    damaged, lost, packed = folders
    (damaged.checkpoints / "step-0000000060" / "state.json").write_text("{}")
    shutil.rmtree(lost.checkpoints / "step-0000000060")
    shutil.rmtree(
        packed.checkpoints
    )  # as runs are packed: without weights there is nothing to go on from
    logs = [folder.log_file.read_bytes() for folder in folders]
    assert [together for _, together in group_compatible(folders)] == [[damaged, lost]]
    train_all(folders, options)
    assert [load_latest(folder.checkpoints)[0].step for folder in (damaged, lost)] == [60, 60]
    assert [folder.log_file.read_bytes() for folder in folders] == logs
    assert list(group_compatible(folders)) == []


def test_runs_that_others_finish_while_a_command_is_at_work_are_left_alone(tmp_path):
    sets = [
        "training.steps=20",
        "training.batch=4",
        "data.images=64",
        "model.channels=(4,4,4)",
        "model.hidden=16",
    ]
    first, second = seed_folders(override(preset("shapes2d-quick"), sets), tmp_path, 2, "")
    options = RunOptions.parse("cpu", checkpoint_every="0s")
    ((_, together),) = group_compatible([first, second])  # chosen when the command begins
    train_all([first], options)
    before = first.events_file.read_bytes()
    runner.resume_runs(together, options, "the same command", withdraw=True)
    assert first.events_file.read_bytes() == before
    assert second.has_ended()


def test_a_stop_asked_for_in_the_last_step_of_a_group_is_one_of_the_command(tmp_path, monkeypatch):
    sets = ["training.steps=2", "data.images=64", "model.channels=(4,4,4)", "model.hidden=16"]
    folders = []
    for batch in (4, 8):
        experiment = override(preset("shapes2d-quick"), [*sets, f"training.batch={batch}"])
        folders += seed_folders(experiment, tmp_path / str(batch), 1, "")

    def interrupt_at_the_end(*runs, **options):
        yield from train_runs(*runs, **options)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner, "train_runs", interrupt_at_the_end)
    with pytest.raises(Interrupted):
        train_all(folders, RunOptions.parse("cpu"))
    assert [bool(folder.has_ended()) for folder in folders] == [True, False]


def test_a_table_shows_mean_spread_and_difference(tmp_path):
    for seed, mig in enumerate(MIGS, start=1):
        evaluated_run(tmp_path / "shapes2d-control-16" / f"seed-{seed}", seed, mig)
    done = within(
        "reproduce", "table-mig", "--runs", tmp_path, "--no-train", "--device", "cpu", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    ours = f"{statistics.fmean(MIGS):.4f} ± {statistics.stdev(MIGS):.4f}"
    assert (
        f"| ControlVAE (KL = 16) | 3 | 1,500,000 | {ours} (paper 0.5628 ± 0.0222, -0.0328) |"
        in done.stdout
    )
    assert "| FactorVAE (γ = 10) | – | – | – (paper 0.5625 ± 0.0443) |" in done.stdout
    rows = list(csv.DictReader((tmp_path / "table-mig.csv").open(encoding="utf-8")))
    assert [(row["seed"], float(row["MIG"])) for row in rows] == [
        ("1", 0.5),
        ("2", 0.56),
        ("3", 0.53),
    ]
    evaluated_run(
        tmp_path / "shapes2d-control-16" / "seed-10", 10, 0.4
    )  # its name sorts before seed-2
    fewer = within(
        "reproduce", "table-mig", "--runs", tmp_path, "--no-train", "--seeds", 3, cwd=tmp_path
    )
    assert f"| ControlVAE (KL = 16) | 3 | 1,500,000 | {ours} " in fewer.stdout, fewer.stderr


def test_ctrl_c_while_evaluating_says_what_is_done_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    folders = [RunFolder(tmp_path / str(seed)) for seed in (1, 2)]
    for seed, folder in enumerate(folders, start=1):
        folder.create(override(preset("shapes2d-quick"), [f"training.seed={seed}"]), "")
        save(folder.checkpoints, Checkpoint(1, {"a": torch.zeros(1)}, {}))
    seen = []

    def interrupted(folder, *_, position, **__):
        seen.append((folder.path.name, position))
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate_run", interrupted)
    with pytest.raises(Interrupted):
        evaluation.evaluate_pending(folders, torch.device("cpu"), None, ConsoleDisplay())
    assert seen == [("1", "1 of 2"), ("2", "2 of 2")]
    assert "stopped while evaluating, 1 of 2 done" in capsys.readouterr().out


def test_what_was_measured_thoroughly_is_not_measured_anew_for_a_bound_that_no_table_shows(
    tmp_path,
):
    folder = RunFolder(tmp_path / "shapes2d-control-16" / "seed-1")
    sets = [
        word
        for one in ("training.steps=1", "training.batch=2", "data.images=64")
        for word in ("--set", one)
    ]
    assert (
        within("train", "shapes2d-control-16", *sets, "--run", folder.path, cwd=tmp_path).returncode
        == 0
    )
    measured = ("evaluate", folder.path, "--device", "cpu", "--thorough", "--iwae", 0)
    assert within(*measured, cwd=tmp_path).returncode == 0
    before = folder.metrics_file.read_bytes()
    tabulated = within(
        "reproduce",
        "ablation-step",
        "--runs",
        tmp_path,
        "--no-train",
        "--device",
        "cpu",
        cwd=tmp_path,
    )
    assert tabulated.returncode == 0, tabulated.stderr
    assert folder.metrics_file.read_bytes() == before
    evaluation.evaluate_run(folder, torch.device("cpu"), None, ConsoleDisplay())
    assert "iwae" in folder.metrics()
    assert folder.metrics()["thorough"]


def test_a_table_says_how_far_methods_are_apart_and_whether_chance_would_do_it(tmp_path):
    others = [0.61, 0.58, 0.6, 0.55]
    for name, values in (("shapes2d-control-16", MIGS), ("shapes2d-control-18", others)):
        for seed, mig in enumerate(values, start=1):
            evaluated_run(tmp_path / name / f"seed-{seed}", seed, mig)
    runs = {
        name: [RunFolder(tmp_path / name / f"seed-{seed}") for seed in range(1, count + 1)]
        for name, count in (("shapes2d-control-16", 3), ("shapes2d-control-18", 4))
    }
    text = write_table(TABLES["table-mig"], runs, tmp_path)
    apart = lambda ones, others: abs(np.mean(ones) - np.mean(others))  # noqa: E731
    exact = stats.permutation_test((others, MIGS), apart, alternative="greater", n_resamples=np.inf)
    error = math.sqrt(statistics.variance(others) / 4 + statistics.variance(MIGS) / 3)
    how = "± its standard error, p by dealing the seeds out to the two at random, for each method by itself"
    expected = (
        f"ControlVAE (KL = 18) {exact.statistic:+.4f} ± {error:.4f} (p = {exact.pvalue:.2g})."
    )
    assert f"MIG, difference from ControlVAE (KL = 16), {how}: {expected}" in text
    ones, others = np.arange(12), np.arange(12) + 4  # more ways to deal them out than are looked at
    chance = stats.permutation_test(
        (ones, others), apart, alternative="greater", n_resamples=20_000, rng=1
    ).pvalue
    assert compare_means(ones, others).p_value == pytest.approx(chance, abs=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [
            compare_means(*pair)
            for pair in (([], []), ([1.0], [2.0, 3.0]), ([1.0, math.inf], [1.0, 2.0]))
        ] == [None] * 3


def test_a_table_is_trained_and_filled_with_settings_of_ones_own_and_says_so(tmp_path):
    words = [
        "reproduce",
        "table-short",
        "--only",
        "shapes2d-short",
        "--seeds",
        1,
        "--runs",
        "short",
    ]
    changes = ["data.images=400", "training.steps=3", "training.batch=4"]
    sets = [word for one in changes for word in ("--set", one)]
    done = within(*words, *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| ControlVAE (set point 16) | 1 | 3 |" in done.stdout
    assert (
        "Not the presets' settings: data.images, training.steps, training.batch (all runs)."
        in done.stdout
    )
    assert (
        "ControlVAE (set point 16): at step 3 its set point is 1 nats, on its way to 16."
        in done.stdout
    )
    assert "(1 of 1)" in done.stderr  # evaluations
    run = RunFolder(tmp_path / "short" / "shapes2d-short" / "seed-1")
    assert (run.experiment().training.steps, run.experiment().data.images) == (3, 400)
    before = run.metrics_file.stat().st_mtime_ns
    assert done.stdout.endswith(within(*words, *sets, cwd=tmp_path).stdout)  # nothing is left to do
    assert run.metrics_file.stat().st_mtime_ns == before
    for other, reason in (
        ([], "choose another --runs, or"),
        ([*sets, "--no-train"], "--no-train trains nothing"),
    ):
        refused = within(*words, *other, cwd=tmp_path)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
        assert reason in refused.stderr


def test_a_table_says_who_diverged_and_takes_scores_that_are_no_numbers(tmp_path):
    runs = [RunFolder(tmp_path / f"seed-{seed}") for seed in (1, 2)]
    for seed, (run, mig) in enumerate(zip(runs, (0.5, float("nan")), strict=True), start=1):
        evaluated_run(run.path, seed, mig)
    runs[1].events_file.write_text(
        json.dumps({"event": "diverged", "step": 400, "time": "now"}) + "\n"
    )
    text = write_table(TABLES["table-mig"], {"shapes2d-control-16": runs}, tmp_path)
    assert "| ControlVAE (KL = 16) | 2 | 1,500,000 | nan ± nan" in text
    assert "ControlVAE (KL = 16), seed 2: diverged; measured at step 1,500,000." in text


def test_a_table_says_what_it_was_measured_on_and_which_runs_are_not_as_printed(tmp_path):
    measured = {
        "step": 9,
        "examples": 1_234,
        "split": "the test set",
        "likelihood": "squares",
        "elbo": -370.0,
    }
    small = ["data.size=32", "training.steps=9"]
    runs = {}
    for name, sets in {
        "cifar10-vae": ["training.seed=7", *small, "control=Constant(2)"],
        "cifar10-warm-up": small,
        "cifar10-beta-145": [],
    }.items():
        folder = RunFolder(tmp_path / name)
        folder.create(override(preset(name), sets), "")
        folder.metrics_file.write_text(json.dumps(measured))
        runs[name] = [folder]
    lines = write_table(TABLES["table-cifar10"], runs, tmp_path).splitlines()
    assert (
        "ELBO: nats per example, 1,234 examples (the test set), reconstruction: squares." in lines
    )
    apart = "data.size, training.steps (VAE; VAE with KL warm-up); control.value (VAE)"
    assert lines[2] == f"Not the presets' settings: {apart}."
    rows = {
        line.split(" | ")[0].removeprefix("| "): line.split(" | ")[2:4]
        for line in lines
        if " | " in line
    }
    assert rows["VAE"] == [
        "9",
        "-370.00 (paper -372.10 ± 0.64)",
    ]  # a difference would be between unlike things
    assert rows["β-VAE (KL = 145)"] == ["9 of 80,000", "-370.00 (paper -388.82 ± 0.76, +18.82)"]
    del runs["cifar10-beta-145"]
    lines = write_table(TABLES["table-cifar10"], runs, tmp_path).splitlines()
    assert (
        lines[2]
        == "Not the presets' settings: data.size, training.steps (all runs); control.value (VAE)."
    )


def test_data_of_ones_own_are_named_and_so_is_why_a_score_is_missing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(
        override(
            preset("shapes2d-control-16"), ["data=Images('faces', size=64, factors='table.csv')"]
        ),
        "",
    )
    truth = {
        "names": ["age", "hair"],
        "unordered": ["hair"],
        "constant": [],
        "examples": 90,
        "split": "train: 90 of 99",
    }
    scores = {
        "mig_sampled": {"skipped": "the reason"},
        "rmig": {"score": 0.1, "per_factor": {"age": 0.1}},
    }
    folder.metrics_file.write_text(json.dumps({"step": 9, "ground_truth": truth, **scores}))
    reasons = {
        "table-mig": "mine, no MIG: the reason.",
        "table-rmig": "mine, no x, y, shape, scale, orientation: not among its factors.",
    }
    for name, reason in reasons.items():
        table = replace(TABLES[name], rows=(*TABLES[name].rows, Row("mine", None)))
        text = write_table(table, {"mine": [folder]}, tmp_path)
        assert (
            "mine is shapes2d-control-16 with another data. Its data: Images(path='faces', size=64), "
            in text
        )
        assert "90 examples (train: 90 of 99), factors age, hair (no quantity)." in text
        assert reason in text
    words = [
        "--no-train",
        "--runs",
        tmp_path / "paper",
        "--device",
        "cpu",
        "--method",
        f"mine={folder.path}",
    ]
    drawn = within("reproduce", "figure-mig", *words, cwd=tmp_path)
    assert "mine, no MIG, sampled: the reason." in drawn.stdout, drawn.stderr


def test_a_table_of_pictures_has_its_terms_where_they_are_its_own_and_a_sheet_of_all_that_was_measured(
    tmp_path,
):
    fid = {
        "samples": {"score": 190.0},
        "reconstructions": {"score": 170.0},
        "pictures": 50,
        "split": "the test set",
    }
    for name, sets in (("as it is", []), ("smaller", ["data.size=32"])):
        folder = RunFolder(tmp_path / name)
        folder.create(override(preset("cifar10-vae"), sets), "")
        folder.metrics_file.write_text(
            json.dumps({"step": 80_000, "fid": fid, "iwae": {"bound": -350.5}})
        )
        text = write_table(TABLES["table-cifar10"], {"cifar10-vae": [folder]}, tmp_path)
        assert ("(128x128, sum of squares, 100 latents)**" in text) == (name == "as it is")
        (row,) = csv.DictReader((tmp_path / "table-cifar10.csv").open(encoding="utf-8"))
        heads = ("FID", "FID of reconstructions", "FID pictures", "FID split", "IWAE", "KID")
        assert [row[head] for head in heads] == [
            "190.0",
            "170.0",
            "50",
            "the test set",
            "-350.5",
            "",
        ]


def test_a_table_says_whose_score_was_worked_out_from_what(tmp_path):
    runs = {}
    for name, examples in (
        ("shapes2d-control-16", "all"),
        ("shapes2d-factor", "all"),
        ("shapes2d-beta-100", "some"),
    ):
        folder = RunFolder(tmp_path / name)
        folder.create(preset(name), "")
        folder.metrics_file.write_text(
            json.dumps({"step": 9, "mig_sampled": {"score": 0.5, "estimator": examples}})
        )
        runs[name] = [folder]
    lines = write_table(TABLES["table-mig"], runs, tmp_path).splitlines()
    assert "ControlVAE (KL = 16); FactorVAE (γ = 10): all." in lines
    assert "β-VAE (β = 100): some." in lines
    runs.pop("shapes2d-beta-100")
    assert "all." in write_table(TABLES["table-mig"], runs, tmp_path).splitlines()


@pytest.fixture
def elsewhere(tmp_path):
    """Codes of two factors, the second of them no quantity, from another program; files of two seeds."""
    rng = np.random.default_rng(0)
    factors = rng.integers(0, 4, (400, 2))
    means = np.column_stack([factors + rng.normal(0, 0.1, (400, 2)), rng.normal(size=400)])
    log_variances = np.log([[0.02, 0.3, 1.0]]).repeat(400, 0)
    (tmp_path / "codes").mkdir()
    for seed, some in enumerate((slice(0, 300), slice(100, 400))):
        arrays = {
            "means": means[some],
            "log_variances": log_variances[some],
            "factors": factors[some],
            "reconstruction": 20.0 + seed,
        }
        np.savez(
            tmp_path / f"codes/theirs-{seed}.npz",
            **arrays,
            factor_names=["size", "kind"],
            unordered=["kind"],
        )
    done = within(
        "score", "codes/theirs-0.npz", "codes/theirs-1.npz", "--device", "cpu", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return means[100:], log_variances[100:], factors[100:]


def test_codes_from_elsewhere_are_scored(tmp_path, elsewhere, capsys):
    means, log_variances, factors = elsewhere
    found = json.loads((tmp_path / "codes/theirs-1.scores.json").read_text())
    assert found["mig_histogram"]["score"] == pytest.approx(mig_histogram(means, factors).score)
    assert found["rmig"]["score"] == pytest.approx(
        rmig(means, log_variances, factors).score, abs=1e-6
    )
    assert list(found["mig_sampled"]["per_factor"]) == ["size"]
    print_metrics("codes", found)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    scores = [found[name]["per_factor"] for name in ("rmig", "mig_histogram", "dci", "sap")]
    assert ["kind", "–", *(f"{score['kind']:.3f}" for score in scores), "–"] in lines
    kl = 0.5 * (means**2 + np.exp(log_variances) - 1 - log_variances).sum(1)
    assert found["kl"] == pytest.approx(kl.mean(), rel=1e-5)
    np.savez(tmp_path / "bare.npz", means=means, factors=factors)
    assert within("score", "bare.npz", "--device", "cpu", cwd=tmp_path).returncode == 0
    bare = json.loads((tmp_path / "bare.scores.json").read_text())
    assert "log-variances" in bare["rmig"]["skipped"]
    assert bare["dci"] == found["dci"] | {"per_factor": bare["dci"]["per_factor"]}
    assert list(bare["dci"]["per_factor"]) == [
        "factor 0",
        "factor 1",
    ]  # as the functions count them


def test_codes_without_factors_have_what_needs_none(tmp_path, elsewhere):
    means, log_variances, _ = elsewhere
    np.savez(tmp_path / "alone.npz", means=means, log_variances=log_variances)
    done = within("score", "alone.npz", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "every disentanglement score is left out" in " ".join(done.stdout.split())
    alone, whole = (
        json.loads((tmp_path / f"{name}.scores.json").read_text())
        for name in ("alone", "codes/theirs-1")
    )
    for name in ("kl", "kl_per_latent", "active_units", "mutual_information"):
        assert alone[name] == whole[name]
    told = alone["mutual_information"]
    assert 0 < told["lower"] <= told["upper"] <= alone["kl"]
    assert "dci" not in alone
    words = ["--runs", "paper", "--no-train", "--device", "cpu", "--method", "theirs=alone.npz"]
    beside = within("reproduce", "table-mig", *words, cwd=tmp_path)
    assert "theirs: the codes in alone.npz, 300 of 300 examples, factors none" in beside.stdout, (
        beside.stderr
    )


def test_factors_of_codes_may_stand_in_a_table_of_words(tmp_path, elsewhere):
    means, log_variances, factors = elsewhere
    np.savez(tmp_path / "alone.npz", means=means, log_variances=log_variances)
    lines = [f"{size},{'abcd'[kind]}" for size, kind in factors.tolist()]
    (tmp_path / "table.csv").write_text("\n".join(["size,kind", *lines]))
    done = within("score", "alone.npz", "--factors", "table.csv", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, same = (
        json.loads((tmp_path / f"{name}.scores.json").read_text())
        for name in ("alone", "codes/theirs-1")
    )
    assert [found[name] for name in ("mig_sampled", "dci")] == [
        same[name] for name in ("mig_sampled", "dci")
    ]
    words = np.array([[str(size), "abcd"[kind], "same"] for size, kind in factors.tolist()])
    names = {"factor_names": ["size", "kind", "light"]}
    np.savez(
        tmp_path / "words.npz", means=means, log_variances=log_variances, factors=words, **names
    )
    done = within("score", "words.npz", "--device", "cpu", cwd=tmp_path)
    told = json.loads((tmp_path / "words.scores.json").read_text())
    assert (told["factors"], told["ground_truth"]["constant"]) == (
        "size, kind (no quantity)",
        ["light"],
    ), done.stderr
    assert (told["mig_sampled"], told["dci"]) == (same["mig_sampled"], same["dci"])
    twice = within(
        "score", "codes/theirs-1.npz", "--factors", "table.csv", "--device", "cpu", cwd=tmp_path
    )
    assert "holds factor_names, factors, unordered already" in twice.stderr
    names, table = (
        ["x", "y", "shape", "scale", "orientation"],
        np.random.default_rng(0).integers(0, 3, (300, 5)),
    )
    np.savez(
        tmp_path / "within.npz",
        means=means,
        log_variances=log_variances,
        factors=table,
        factor_names=names,
    )
    np.savetxt(
        tmp_path / "shapes.csv", table, fmt="%d", delimiter=",", header=",".join(names), comments=""
    )
    assert within("score", "within.npz", "--device", "cpu", cwd=tmp_path).returncode == 0
    assert (
        within(
            "score", "alone.npz", "--factors", "shapes.csv", "--device", "cpu", cwd=tmp_path
        ).returncode
        == 0
    )
    beside, inside = (
        json.loads((tmp_path / f"{name}.scores.json").read_text()) for name in ("alone", "within")
    )
    assert beside["factors"] == inside["factors"] == "x, y, shape (no quantity), scale, orientation"


def test_methods_of_ones_own_stand_beside_the_papers(tmp_path, elsewhere):
    evaluated_run(tmp_path / "runs", 1, 0.61)
    words = [
        "--runs",
        "paper",
        "--no-train",
        "--device",
        "cpu",
        "--method",
        "theirs=codes",
        "--method",
        "my own=runs",
    ]
    done = within("reproduce", "table-mig", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scores = [
        json.loads(path.read_text())["mig_sampled"]["score"]
        for path in tmp_path.glob("codes/*.scores.json")
    ]
    spread = f"{statistics.fmean(scores):.4f} ± {statistics.stdev(scores):.4f}"
    assert f"| theirs | 2 | – | {spread} |" in done.stdout
    assert "| my own | 1 | 1,500,000 | 0.6100 |" in done.stdout
    assert (
        "theirs: the codes in theirs-0.npz, 300 of 300 examples, factors size, kind (no quantity)."
        in done.stdout
    )
    assert "my own is shapes2d-control-16 with another name." in done.stdout
    drawn = within("reproduce", "figure-mig", *words[:-2], cwd=tmp_path)
    on = "300 of 300 examples, factors size, kind (no quantity)"
    assert f"theirs: scores of 2 files of codes ({on})." in drawn.stdout
    rows = list(csv.DictReader((tmp_path / "paper" / "figure-mig.csv").open(encoding="utf-8")))
    assert sorted(float(row["reconstruction"]) for row in rows if row["method"] == "theirs") == [
        20,
        21,
    ]
    assert sorted(float(row["mig_sampled.score"]) for row in rows) == pytest.approx(sorted(scores))
    assert "is made from runs" in within("reproduce", "figure-cifar10", *words, cwd=tmp_path).stderr
    np.savez(tmp_path / "codes" / "theirs-2.npz", means=np.zeros((9, 2)))
    done = within("reproduce", "table-mig", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "theirs-2.npz holds codes without scores" in done.stderr
    (tmp_path / "codes" / "theirs-2.npz").unlink()
    one, other = (tmp_path / "codes" / f"theirs-{seed}.npz" for seed in (0, 1))
    dates = one.stat()
    one.write_bytes(other.read_bytes())
    os.utime(
        one, ns=(dates.st_atime_ns, dates.st_mtime_ns)
    )  # older than its scores, and not what was scored
    assert (
        "theirs-0.npz holds codes without scores"
        in within("reproduce", "table-mig", *words, cwd=tmp_path).stderr
    )


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            ["control.target=Staircase(0.5, 12, 0.15, 5000)"],
            "differ in control.target.stop, so 'mine' cannot be both",
        ),
        (
            ["training.seed=2", "optimiser.rate=1e-3"],
            "differ in optimiser.rate, so 'mine' cannot be both",
        ),
        (
            ["training.seed=2", "training.steps=9"],
            "differ in training.steps, so 'mine' cannot be both",
        ),
        (["training.log_every=9"], "are both seed 1, so 'mine' cannot be both"),
    ],
)
def test_what_is_no_seed_of_one_method_is_not_taken_for_one(tmp_path, others, message):
    evaluated_run(tmp_path / "sweep" / "target=16", 1, 0.61)
    RunFolder(tmp_path / "sweep" / "other").create(
        override(preset("shapes2d-control-16"), others), ""
    )
    words = [
        "reproduce",
        "table-mig",
        "--runs",
        "paper",
        "--no-train",
        "--device",
        "cpu",
        "--method",
    ]
    done = within(*words, "mine=sweep", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    one = within(*words, "mine (KL = 16)=sweep/target=16", cwd=tmp_path)
    assert "| mine (KL = 16) | 1 | 1,500,000 | 0.6100 |" in one.stdout, one.stderr
    for wrong in ("mine=sweep/target=61", "mine (KL = 16)=sweep/target=61"):
        assert "sweep/target=61" in within(*words, wrong, cwd=tmp_path).stderr


def test_scores_of_other_factors_are_not_compared(tmp_path):
    def runs(name, factors, estimators):
        for seed, estimator in enumerate(estimators, start=1):
            evaluated_run(tmp_path / name / f"seed-{seed}", seed, 0.5 + seed / 100)
            mig = {
                "score": 0.5 + seed / 100,
                "estimator": estimator,
                "per_factor": dict.fromkeys(factors, 0.5),
            }
            (tmp_path / name / f"seed-{seed}" / "metrics.json").write_text(
                json.dumps({"step": 9, "mig_sampled": mig})
            )
        return [
            RunFolder(tmp_path / name / f"seed-{seed}")
            for seed, _ in enumerate(estimators, start=1)
        ]

    first = runs("first", ["x", "y"], "aa")
    found = {
        "shapes2d-control-16": first,
        "like it": runs("like", ["y", "x"], ["a", "a; a remark"]),
        "of old": runs("old", [], "aa"),
        "other": runs("o", ["age"], "aa"),
        "both": runs("b", ["x", "y"], "ab"),
    }
    names = ("like it", "of old", "other", "both")
    table = replace(
        TABLES["table-mig"],
        rows=(TABLES["table-mig"].rows[0], *(Row(name, None) for name in names)),
    )
    text = write_table(table, found, tmp_path)
    (compared,) = (line for line in text.splitlines() if "difference from" in line)
    assert [f"{name} +" in compared for name in names] == [True, False, False, False]
    assert "other: a, of the factors age." in text
    assert "like it, seed 2: a remark." in text
    assert "of other factors or of different numbers of examples do not compare" in text
    found = {name: runs for name, runs in found.items() if name not in ("other", "both")}
    (compared,) = (
        line
        for line in write_table(table, found, tmp_path).splitlines()
        if "difference from" in line
    )
    assert [f"{name} +" in compared for name in names] == [
        True,
        True,
        False,
        False,
    ]  # what does not say is the one way


def test_numbers_of_one_column_have_as_many_decimals(tmp_path):
    runs = {}
    for name, kl in (("shapes2d-laptop", 13.514), ("shapes2d-laptop-vae", 8.6104)):
        runs[name] = [RunFolder(tmp_path / name)]
        runs[name][0].create(preset(name), "")
        runs[name][0].metrics_file.write_text(
            json.dumps({"step": 9, "kl": kl, "mig_sampled": {"score": 0.12345}})
        )
    rows = [
        line.split(" | ")
        for line in write_table(TABLES["table-laptop"], runs, tmp_path).splitlines()
    ]
    found = {row[0]: (row[3], row[-1]) for row in rows if len(row) > 3 and row[3].startswith("0")}
    assert found == {
        "| ControlVAE (set point 10)": ("0.1235", "13.51 |"),
        "| VAE": ("0.1235", "8.61 |"),
    }


def test_settings_that_not_all_methods_have_make_no_run(tmp_path):
    done = within(
        "reproduce", "table-laptop", "--set", "control.target=5", "--runs", "runs", cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "shapes2d-laptop-factor: no field of Constant 'target'" in done.stderr
    assert "--only PRESET trains some of the methods" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_scores_that_json_has_no_number_for_are_none(tmp_path):
    means = np.random.default_rng(0).normal(size=(50, 2))
    np.savez(tmp_path / "codes.npz", means=means, log_variances=np.full((50, 2), 800.0))
    assert within("score", "codes.npz", "--device", "cpu", cwd=tmp_path).returncode == 0
    assert (
        json.loads((tmp_path / "codes.scores.json").read_text(), parse_constant=pytest.fail)["kl"]
        is None
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": np.full((9, 2), "a")}, "must be real numbers"),
        ({"means": np.full((9, 2), 1e30)}, "within"),
        ({"means": np.full((9, 2), np.nan)}, "must be finite"),
        ({"log_variances": np.zeros((9, 3))}, "must have the shape of means"),
        ({"factors": np.zeros((9, 2), int)}, "no factor varies"),
        ({"factors": np.full((9, 2), 2.0**60)}, "cannot be told apart"),
        ({"factor_names": ["a", "a"]}, "2 different names"),
        ({"unordered": ["c"]}, "not among the factors"),
        ({"variances": np.ones((9, 2))}, "holds variances"),
        ({"means": np.array([{}])}, "no .npz of plain arrays"),
    ],
)
def test_codes_that_cannot_be_scored_are_refused_in_a_line(tmp_path, change, message):
    good = {"means": np.eye(9, 2), "factors": np.arange(18).reshape(9, 2) % 3}
    np.savez(tmp_path / "codes.npz", **(good | change))
    done = within("score", "codes.npz", "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not list(tmp_path.glob("*.json"))


def test_the_bench_writes_what_it_shows(tmp_path):
    out = tmp_path / "bench.json"
    words = [
        "--models",
        "1",
        "--batches",
        "16",
        "--seconds",
        "0.1",
        "--device",
        "cpu",
        "--out",
        out,
    ]
    done = controlvae("bench", "shapes2d-quick", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = json.loads(out.read_text())["results"]
    pythae = importlib.util.find_spec("pythae") is not None
    others = ["plain eager loop", "pythae's trainer"] if pythae else ["plain eager loop"]
    assert [line["what"] for line in lines] == [*others, *["controlvae"] * 2]
    assert [(line["batch"], line["pixels"]) for line in lines[-2:]] == [(64, 32), (16, 32)]
    assert all(line["steps_per_second"] > 0 for line in lines)
    assert ("pip install 'controlvae[bench]'" in done.stdout) != pythae
    assert list(tmp_path.iterdir()) == [out]  # nothing left behind


def test_the_bench_counts_sentences_in_tokens(tmp_path):
    out, words = tmp_path / "bench.json", ["--models", "1", "--seconds", "0.1", "--device", "cpu"]
    done = controlvae("bench", "dialog-quick", *words, "--out", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout
    responses = load_dataset(PRESETS["dialog-quick"].data).lengths[:, 1].double()
    for line, what in zip(
        json.loads(out.read_text())["results"], ("plain eager loop", "controlvae"), strict=True
    ):
        assert (line["what"], line["pixels"]) == (what, None)
        assert line["tokens"] == pytest.approx(responses.mean().item())
        assert line["steps_per_second"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce", "table-mgi"], "did you mean 'table-mig'"),
        (["reproduce", "table-mig", "--only", "shapes2d-vae"], "has no preset 'shapes2d-vae'"),
        (
            ["reproduce", "table-mig", "--no-train", "--method", "mine"],
            "--beside takes NAME=FOLDER",
        ),
        (
            ["reproduce", "table-mig", "--no-train", "--method", "a|b=runs"],
            "has no |, $ or line break",
        ),
        (
            ["reproduce", "table-mig", "--no-train", "--method", "Control-FactorVAE=."],
            "is taken; give your method another name",
        ),
        (["reproduce", "table-mig", "--no-train", "--runs", "nowhere"], "no folder nowhere"),
        (
            ["reproduce", "table-mig", "--no-train", "--only", "shapes2d-factor"],
            "--no-train trains nothing",
        ),
        (["report", ".", "--out", "page.pdf"], "--out takes the HTML file to write"),
        (["score", "codes.npz"], "no file codes.npz"),
        (["bench", "--models", "one"], "got 'one'"),
        (["bench", "--sizes", "48"], "size must be 64 or 32, got 48"),
        (["bench", "text-quick", "--sizes", "32"], "--sizes are of pictures"),
        (["bench", "nonsense-of-a-name"], "nonsense-of-a-name"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, words, message):
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_sweep_trains_its_targets_and_goes_on_where_it_stopped(tmp_path):
    words = [
        "sweep",
        "shapes2d-quick",
        "--vary",
        "control.target=6,12",
        "--seeds",
        "2",
        "--run",
        tmp_path,
        "--vae",
        "--set",
        "training.steps=300",
        "--set",
        "data.images=500",
        "--set",
        "training.batch=16",
        "--set",
        "model.channels=(8,8,8)",
        "--set",
        "model.hidden=32",
        "--device",
        "cpu",
    ]
    with ended_after(20):
        stopped = within(*words, cwd=tmp_path)
    assert stopped.returncode == 0
    assert (
        "/6.00  β" in stopped.stderr
    )  # of the plain VAE and those that hold something, the first of these
    assert "x6 models, these numbers of shapes2d-quick (target=6)" in stopped.stderr
    assert "go on with: the same command" in stopped.stdout
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [row["setting"] for row in rows] == ["plain VAE", "target=6", "target=12"]
    assert float(rows[1]["kl mean"]) < float(rows[2]["kl mean"])
    assert len(list(tmp_path.rglob("experiment.json"))) == 6
    assert (tmp_path / "sweep.png").stat().st_size > 5_000
    pairs = [
        pair
        for pair in csv.DictReader((tmp_path / "theorem.csv").open())
        if pair["setting"] == "target=12"
    ]
    gained = {
        name: statistics.fmean(float(pair[name]) for pair in pairs)
        for name in ("d", "gain in ELBO")
    }
    difference = lambda name: float(rows[2][f"{name} mean"]) - float(rows[0][f"{name} mean"])  # noqa: E731
    assert [pair["seed"] for pair in pairs] == ["1", "2"]
    assert (gained["d"], gained["gain in ELBO"]) == pytest.approx(
        (difference("kl"), difference("elbo")), abs=1e-3
    )
    assert (
        within(*words[:2], "--vary", "control.target", "--run", tmp_path, cwd=tmp_path).returncode
        == 2
    )


def test_values_of_a_sweep_may_hold_dots_and_commas():
    assert split_values("control.target=14.5,16") == ["control.target=14.5", "control.target=16"]
    assert split_values('data=Images("a,b", size=8), PI(6, ki=0.1)') == [
        'data=Images("a,b", size=8)',
        "data=PI(6, ki=0.1)",
    ]


def test_a_folder_with_other_settings_is_not_taken_for_ones_own(tmp_path):
    (folder,) = seed_folders(preset("shapes2d-quick"), tmp_path, 1, "")
    changed = override(preset("shapes2d-quick"), ["training.batch=32"])
    folder.events_file.write_text('{"event": "started", "step": 0}\n')
    with pytest.raises(UserError, match="other settings; choose another --run, or delete it"):
        seed_folders(changed, tmp_path, 1, "")


def test_a_command_put_right_takes_up_folders_that_never_began(tmp_path):
    """Damaged pictures are found after the folders are made; the command that leaves them out must not be refused."""
    (tmp_path / "photos").mkdir()
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "torn.png").write_bytes(b"not a picture")
    words = ["target", "pictures", "--steps", "20", "--device", "cpu", "--run", "there"]
    sets = [
        "data.path=photos",
        "data.size=16",
        "model.channels=4,4",
        "training.batch=4",
        "training.validation=0.15",
        "training.log_every=5",
        "training.validate_every=0",
        "objective.likelihood=squared-error",
    ]
    words += [word for text in sets for word in ("--set", text)]
    refused = within(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "torn.png" in refused.stderr
    assert list((tmp_path / "there").iterdir()) == []
    done = within(*words, "--set", "data.unreadable=skip", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 25 left out as unreadable (torn.png)" in done.stderr
    assert "22 examples of 3x16x16, 19 for training and 3 for validation" in done.stderr
    assert "controlvae sweep pictures --set data.path=photos" in done.stdout


def test_a_run_that_another_process_begins_is_left_to_it(tmp_path):
    experiment = override(preset("shapes2d-quick"), ["data.images=500"])
    (folder,) = seed_folders(experiment, tmp_path / "run", 1, "")
    beginning = Run.open(folder)  # its data is being made: no event yet
    with pytest.raises(UserError, match="trained by another process"):
        train_all([folder], RunOptions.parse("cpu"))
    assert folder.experiment() == beginning.experiment


@pytest.mark.parametrize("every", [1, 5, 7, 10, 40, 95])
def test_a_mean_over_the_last_tenth_is_one_over_steps_however_they_are_logged(every):
    """A line counts by its steps in the tenth; one that is longer is all there is."""
    ends = [*range(every, 95, every), 95]
    lines = [{"step": end, "kl": float(end) ** 2} for end in ends]
    half_steps = np.repeat([line["kl"] for line in lines], 2 * np.diff([0, *ends]))
    assert mean_of_last_tenth(lines, "kl") == pytest.approx(half_steps[-19:].mean())


def test_target_measures_the_plain_vae_and_recommends_within_reach(tmp_path):
    words = [
        "target",
        "shapes2d-quick",
        "--run",
        tmp_path,
        "--device",
        "cpu",
        "--set",
        "data.images=500",
        "--set",
        "training.batch=16",
        "--set",
        "training.log_every=200",
    ]
    done = within(*words, "--steps", "200", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logged = [record["kl"] for record in RunFolder(tmp_path / "beta-1" / "seed-1").records()]
    kl, half = statistics.fmean(logged[-2:]), statistics.fmean(logged[8:10])
    assert len(logged) == 20
    assert (
        "after 200 steps, nats per example, means over the last 20 training batches:" in done.stdout
    )
    assert f"plain VAE                β 1      KL {kl:9.2f}" in done.stdout
    assert f"the plain VAE's KL is still rising, from {half:.1f} to {kl:.1f} nats" in done.stdout
    assert "train longer, with another --run: --steps 800" in done.stdout
    refused = within(*words, "--steps", "800", cwd=tmp_path)
    assert (refused.returncode, "choose another --run" in refused.stderr) == (2, True)
    assert re.search(r"at the lower bound +β 0 +KL", done.stdout)
    command = r"controlvae train shapes2d-quick --set data.images=500 --set training.batch=16 .*--set control.target=\d"
    assert re.search(command, done.stdout)
    for name, reason in (
        ("shapes2d-factor", "holds tc"),
        ("shapes2d-control-16", "never goes below 1"),
    ):
        refused = within("target", name, "--run", tmp_path / "no", cwd=tmp_path)
        assert refused.returncode == 2
        assert reason in refused.stderr
