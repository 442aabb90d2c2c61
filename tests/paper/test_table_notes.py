"""Notes below a table: differences, estimators, user-supplied methods and events of runs."""

import json
import re
from dataclasses import replace

import pytest
from command import within
from evaluated_runs import evaluated_run, mig_runs

from controlvae.lab.evaluation.statistics import compare_means, holm_correction
from controlvae.paper.specs import Row
from controlvae.paper.table_writer import write_table
from controlvae.paper.tables import TABLES

TABLE = TABLES["table-mig"]
FIRST = "shapes2d-control-16"
MIGS = [0.5, 0.56, 0.53]
OTHER_MIGS = [0.61, 0.58, 0.6, 0.55]


def with_methods(*names):
    """Return the MIG table with its first row and these user-supplied methods."""
    return replace(TABLE, rows=(TABLE.rows[0], *(Row(name, None) for name in names)))


def difference_note(text):
    """Return the line on the differences between methods."""
    (line,) = (line for line in text.splitlines() if "difference from" in line)
    return line


def test_difference_has_standard_error_and_p_value(tmp_path):
    runs = {FIRST: mig_runs(tmp_path / "one", MIGS), "mine": mig_runs(tmp_path / "two", OTHER_MIGS)}
    line = difference_note(write_table(with_methods("mine"), runs, tmp_path))
    expected = compare_means(OTHER_MIGS, MIGS)
    assert "difference from ControlVAE (KL = 16)" in line
    assert "permutation" in line
    assert "Holm" not in line
    assert f"mine {expected.mean:+.4f} ± {expected.error:.4f} (p = {expected.p_value:.2g})" in line


def test_several_p_values_are_holm_corrected(tmp_path):
    values = {"mine": OTHER_MIGS, "yours": [0.54, 0.5, 0.57, 0.52]}
    runs = {name: mig_runs(tmp_path / name, migs) for name, migs in values.items()}
    runs[FIRST] = mig_runs(tmp_path / "first", MIGS)
    line = difference_note(write_table(with_methods(*values), runs, tmp_path))
    corrected = holm_correction([compare_means(migs, MIGS).p_value for migs in values.values()])
    assert "Holm" in line
    assert re.findall(r"p = ([\d.]+)\)", line) == [f"{p_value:.2g}" for p_value in corrected]


def test_estimators_are_listed_with_their_methods(tmp_path):
    estimators = {FIRST: "all", "shapes2d-factor": "all", "shapes2d-beta-100": "some"}
    runs = {}
    for name, estimator in estimators.items():
        metrics = {"step": 9, "mig_sampled": {"score": 0.5, "estimator": estimator}}
        runs[name] = [evaluated_run(tmp_path / name, metrics, name)]
    lines = write_table(TABLE, runs, tmp_path).splitlines()
    assert "ControlVAE (KL = 16); FactorVAE (γ = 10): all." in lines
    assert "β-VAE (β = 100): some." in lines
    del runs["shapes2d-beta-100"]
    assert "all." in write_table(TABLE, runs, tmp_path).splitlines()


def scored_runs(folder, factors, estimators):
    """Create one run per estimator, whose MIG has these factors."""
    runs = []
    for seed, estimator in enumerate(estimators, start=1):
        mig = {"score": 0.5 + seed / 100, "estimator": estimator}
        mig["per_factor"] = dict.fromkeys(factors, 0.5)
        metrics, changes = {"step": 9, "mig_sampled": mig}, [f"training.seed={seed}"]
        runs.append(evaluated_run(folder / f"seed-{seed}", metrics, changes=changes))
    return runs


def test_scores_of_other_factors_are_not_compared(tmp_path):
    table = with_methods("same", "unrecorded", "other", "mixed")
    runs = {
        FIRST: scored_runs(tmp_path / "first", ["x", "y"], "aa"),
        "same": scored_runs(tmp_path / "same", ["y", "x"], ["a", "a; a remark"]),
        "unrecorded": scored_runs(tmp_path / "unrecorded", [], "aa"),
        "other": scored_runs(tmp_path / "other", ["age"], "aa"),
        "mixed": scored_runs(tmp_path / "mixed", ["x", "y"], "ab"),
    }

    def compared(text):
        return [row.method for row in table.rows[1:] if f"{row.method} +" in difference_note(text)]

    text = write_table(table, runs, tmp_path)
    assert compared(text) == ["same"]
    assert "other: a, factors age." in text
    assert "same, seed 2: a remark." in text
    assert "cannot be compared" in text
    # Unrecorded factors are those of the other runs if these have one set of factors only.
    del runs["other"], runs["mixed"]
    assert compared(write_table(table, runs, tmp_path)) == ["same", "unrecorded"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("table-mig", "mine has no MIG: the reason."),
        ("table-rmig", "mine has no x, y, shape, scale, orientation: not among its factors."),
    ],
)
def test_custom_data_and_missing_scores_are_described(tmp_path, name, reason):
    run = run_with_own_data(tmp_path / "run")
    table = replace(TABLES[name], rows=(*TABLES[name].rows, Row("mine", None)))
    text = write_table(table, {"mine": [run]}, tmp_path)
    assert "mine has the settings of shapes2d-control-16, except data." in text
    assert "Images(path='faces', size=64)" in text
    assert "90 examples (train: 90 of 99), factors age, hair (unordered)." in text
    assert reason in text


def test_figure_explains_missing_scores(tmp_path):
    run = run_with_own_data(tmp_path / "run")
    words = ["--no-train", "--runs", "paper", "--device", "cpu", "--method", f"mine={run.path}"]
    drawn = within("reproduce", "figure-mig", *words, cwd=tmp_path)
    assert "mine has no MIG, sampled: the reason." in drawn.stdout, drawn.stderr


def run_with_own_data(path):
    """Create an evaluated run on labelled images of the user."""
    truth = {"names": ["age", "hair"], "unordered": ["hair"], "constant": []}
    truth |= {"examples": 90, "split": "train: 90 of 99"}
    rmig = {"score": 0.1, "per_factor": {"age": 0.1}}
    metrics = {"step": 9, "ground_truth": truth, "rmig": rmig}
    metrics["mig_sampled"] = {"skipped": "the reason"}
    data = "data=Images('faces', size=64, factors='table.csv')"
    return evaluated_run(path, metrics, changes=[data])


def test_events_and_unfinished_ramps_are_noted(tmp_path):
    (run,) = mig_runs(tmp_path, [0.5])
    events = [
        {"event": "branched", "step": 4_000, "from": "runs/a", "changed": ["optimiser.rate"]},
        {"event": "diverged", "step": 400},
    ]
    run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    run.metrics_file.write_text(json.dumps({"step": 9, "mig_sampled": {"score": 0.5}}))
    text = write_table(TABLE, {FIRST: [run]}, tmp_path)
    assert "at step 9 its target is 0.5 of 16 nats" in text
    assert "trained with another optimiser.rate up to step 4,000" in text
    moved = json.dumps({"event": "target moved", "step": 5, "target": 20.0}) + "\n"
    run.events_file.write_text(moved)
    text = write_table(TABLE, {FIRST: [run]}, tmp_path)
    assert "seed 1: its target was moved by hand" in text
    assert "its target is" not in text


def test_inactive_latents_are_noted(tmp_path):
    metrics = {"step": 9, "factor_vae_score": {"score": 0.0, "active_latents": 0}}
    run = evaluated_run(tmp_path / "run", metrics, "shapes2d-laptop-vae")
    text = write_table(TABLES["table-laptop"], {"shapes2d-laptop-vae": [run]}, tmp_path)
    assert "VAE, seed 1: no latent is active" in text
