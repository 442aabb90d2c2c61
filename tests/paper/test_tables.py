"""Tables of the paper, filled in from run folders."""

import csv
import json
import math
import os
import statistics
import warnings
from dataclasses import replace

import numpy as np
import pytest
from command import within
from scipy import stats

from controlvae.lab.config import PRESETS, override, preset
from controlvae.lab.engines.select import shared_settings
from controlvae.lab.evaluation.statistics import compare_means
from controlvae.lab.reports.metrics_table import print_metrics
from controlvae.lab.runs.folder import RunFolder
from controlvae.metrics import mig_histogram
from controlvae.metrics.disentanglement import rmig
from controlvae.paper.specs import Row
from controlvae.paper.table_writer import write_table
from controlvae.paper.tables import TABLES

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
    assert "factor_names, factors, unordered" in twice.stderr
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
    assert "needs runs" in within("reproduce", "figure-cifar10", *words, cwd=tmp_path).stderr
    np.savez(tmp_path / "codes" / "theirs-2.npz", means=np.zeros((9, 2)))
    done = within("reproduce", "table-mig", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "theirs-2.npz has no scores" in done.stderr
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


def test_infinite_scores_are_null_in_json(tmp_path):
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
        ({"factors": np.zeros((9, 2), int)}, "constant"),
        ({"factors": np.full((9, 2), 2.0**60)}, "2**53"),
        ({"factor_names": ["a", "a"]}, "2 different names"),
        ({"unordered": ["c"]}, "got ['c']"),
        ({"variances": np.ones((9, 2))}, "variances"),
        ({"means": np.array([{}])}, ".npz file of plain arrays"),
    ],
)
def test_unusable_codes_are_refused(tmp_path, change, message):
    good = {"means": np.eye(9, 2), "factors": np.arange(18).reshape(9, 2) % 3}
    np.savez(tmp_path / "codes.npz", **(good | change))
    done = within("score", "codes.npz", "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not list(tmp_path.glob("*.json"))
