"""Scores of latent codes from external models, through the command `score`."""

import json

import numpy as np
import pytest
from command import within
from evaluated_runs import read_scores, scored_codes

from controlvae.lab.reports.metrics_table import print_metrics
from controlvae.metrics import mig_histogram
from controlvae.metrics.disentanglement import rmig

CPU = ("--device", "cpu")
SHAPES_FACTORS = ["x", "y", "shape", "scale", "orientation"]


@pytest.fixture
def codes(tmp_path):
    return scored_codes(tmp_path)


def score(folder, name, *options):
    """Run the command on `NAME.npz` and return its scores."""
    done = within("score", f"{name}.npz", *options, *CPU, cwd=folder)
    assert done.returncode == 0, done.stderr
    return read_scores(folder, name)


def test_scores_match_the_metric_functions(tmp_path, codes):
    means, log_variances, factors = codes
    scores = read_scores(tmp_path, "codes/theirs-1")
    assert scores["mig_histogram"]["score"] == pytest.approx(mig_histogram(means, factors).score)
    expected = rmig(means, log_variances, factors).score
    assert scores["rmig"]["score"] == pytest.approx(expected, abs=1e-6)
    assert list(scores["mig_sampled"]["per_factor"]) == ["size"]
    kl = 0.5 * (means**2 + np.exp(log_variances) - 1 - log_variances).sum(1)
    assert scores["kl"] == pytest.approx(kl.mean(), rel=1e-5)


def test_printed_table_has_scores_by_factor(tmp_path, codes, capsys):
    scores = read_scores(tmp_path, "codes/theirs-1")
    print_metrics("codes", scores)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = ("rmig", "mig_histogram", "dci", "sap")
    numbers = [f"{scores[name]['per_factor']['kind']:.3f}" for name in names]
    more = [f"{scores[name]['per_factor']['kind']:.3f}" for name in ("explicitness", "infomec")]
    assert ["kind", "–", *numbers, "–", *more] in lines


def test_codes_without_variances_skip_some_scores(tmp_path, codes):
    means, _, factors = codes
    np.savez(tmp_path / "bare.npz", means=means, factors=factors)
    bare, complete = score(tmp_path, "bare"), read_scores(tmp_path, "codes/theirs-1")
    assert "log-variances" in bare["rmig"]["skipped"]
    assert list(bare["dci"]["per_factor"]) == ["factor 0", "factor 1"]
    assert bare["dci"] == complete["dci"] | {"per_factor": bare["dci"]["per_factor"]}


def test_codes_without_factors_have_label_free_metrics(tmp_path, codes):
    means, log_variances, _ = codes
    np.savez(tmp_path / "alone.npz", means=means, log_variances=log_variances)
    done = within("score", "alone.npz", *CPU, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--factors" in done.stdout
    alone, complete = (read_scores(tmp_path, name) for name in ("alone", "codes/theirs-1"))
    for name in ("kl", "kl_per_latent", "active_units", "mutual_information"):
        assert alone[name] == complete[name]
    information = alone["mutual_information"]
    assert 0 < information["lower"] <= information["upper"] <= alone["kl"]
    assert "dci" not in alone


def test_factors_are_read_from_a_table_of_words(tmp_path, codes):
    means, log_variances, factors = codes
    np.savez(tmp_path / "alone.npz", means=means, log_variances=log_variances)
    lines = [f"{size},{'abcd'[kind]}" for size, kind in factors.tolist()]
    (tmp_path / "table.csv").write_text("\n".join(["size,kind", *lines]))
    scores = score(tmp_path, "alone", "--factors", "table.csv")
    expected = read_scores(tmp_path, "codes/theirs-1")
    assert scores["mig_sampled"] == expected["mig_sampled"]
    assert scores["dci"] == expected["dci"]
    twice = within("score", "codes/theirs-1.npz", "--factors", "table.csv", *CPU, cwd=tmp_path)
    assert twice.returncode == 2
    assert "factor_names, factors, unordered" in twice.stderr


def test_factors_may_be_an_array_of_words(tmp_path, codes):
    means, log_variances, factors = codes
    words = np.array([[str(size), "abcd"[kind], "same"] for size, kind in factors.tolist()])
    arrays = {"means": means, "log_variances": log_variances, "factors": words}
    np.savez(tmp_path / "words.npz", **arrays, factor_names=["size", "kind", "light"])
    scores, expected = score(tmp_path, "words"), read_scores(tmp_path, "codes/theirs-1")
    assert scores["factors"] == expected["factors"]
    assert scores["ground_truth"]["constant"] == ["light"]
    assert scores["mig_sampled"] == expected["mig_sampled"]
    assert scores["dci"] == expected["dci"]


def test_shape_of_2d_shapes_is_unordered_by_default(tmp_path, codes):
    means, log_variances, _ = codes
    table = np.random.default_rng(0).integers(0, 3, (300, 5))
    arrays = {"means": means, "log_variances": log_variances}
    np.savez(tmp_path / "alone.npz", **arrays)
    np.savez(tmp_path / "with.npz", **arrays, factors=table, factor_names=SHAPES_FACTORS)
    header = ",".join(SHAPES_FACTORS)
    np.savetxt(tmp_path / "shapes.csv", table, fmt="%d", delimiter=",", header=header, comments="")
    scores = score(tmp_path, "with")
    assert scores["factors"] == "x, y, shape (no quantity), scale, orientation"
    assert score(tmp_path, "alone", "--factors", "shapes.csv")["factors"] == scores["factors"]


def test_infinite_kl_is_null_in_json(tmp_path):
    means = np.random.default_rng(0).normal(size=(50, 2))
    np.savez(tmp_path / "codes.npz", means=means, log_variances=np.full((50, 2), 800.0))
    assert within("score", "codes.npz", *CPU, cwd=tmp_path).returncode == 0
    text = (tmp_path / "codes.scores.json").read_text()
    scores = json.loads(text, parse_constant=pytest.fail)
    assert scores["kl"] is None
    assert scores["kl_per_latent"] == [None, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": np.full((9, 2), "a")}, "real numbers"),
        ({"means": np.full((9, 2), 1e30)}, "within"),
        ({"means": np.full((9, 2), np.nan)}, "finite"),
        ({"log_variances": np.zeros((9, 3))}, r"(9, 3)"),
        ({"factors": np.zeros((9, 2), int)}, "constant"),
        ({"factors": np.full((9, 2), 2.0**60)}, "2**53"),
        ({"factor_names": ["a", "a"]}, "2 different names"),
        ({"unordered": ["c"]}, "['c']"),
        ({"variances": np.ones((9, 2))}, "unknown arrays variances"),
        ({"means": np.array([{}])}, ".npz"),
    ],
)
def test_unusable_codes_are_refused_in_one_line(tmp_path, change, message):
    arrays = {"means": np.eye(9, 2), "factors": np.arange(18).reshape(9, 2) % 3}
    np.savez(tmp_path / "codes.npz", **(arrays | change))
    done = within("score", "codes.npz", *CPU, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not list(tmp_path.glob("*.json"))
