"""Tables written from run folders: cells, title, changed settings and the CSV file."""

import csv
import json

from evaluated_runs import evaluated_run, mig_runs

from controlvae.paper.table_writer import write_table
from controlvae.paper.tables import TABLES


def cells_by_method(text):
    """Return the cells of each row of a Markdown table, by its first cell."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in rows}


def test_diverged_run_is_named_and_its_score_is_nan(tmp_path):
    runs = mig_runs(tmp_path, (0.5, float("nan")))
    event = {"event": "diverged", "step": 400, "time": "now"}
    runs[1].events_file.write_text(json.dumps(event) + "\n")
    text = write_table(TABLES["table-mig"], {"shapes2d-control-16": runs}, tmp_path)
    seeds, steps, mig = cells_by_method(text)["ControlVAE (KL = 16)"]
    assert (seeds, steps) == ("2", "1,500,000")
    assert mig.startswith("nan ± nan")
    assert "ControlVAE (KL = 16), seed 2: diverged" in text


def test_changed_settings_are_listed_and_not_compared(tmp_path):
    metrics = {"step": 9, "examples": 1_234, "split": "the test set", "likelihood": "squares"}
    small = ["data.size=32", "training.steps=9"]
    changes = {
        "cifar10-vae": ["training.seed=7", *small, "control=Constant(2)"],
        "cifar10-warm-up": small,
        "cifar10-beta-145": [],
    }
    runs = {
        name: [evaluated_run(tmp_path / name, metrics | {"elbo": -370.0}, name, sets)]
        for name, sets in changes.items()
    }
    text = write_table(TABLES["table-cifar10"], runs, tmp_path)
    assert "1,234 examples (the test set), reconstruction: squares" in text
    listed = text.splitlines()[2]
    assert "data.size, training.steps (VAE; VAE with KL warm-up); control.value (VAE)" in listed
    rows = cells_by_method(text)
    # A difference from the paper's number would compare unlike things.
    assert rows["VAE"][1:3] == ["9", "-370.00 (paper -372.10 ± 0.64)"]
    beta_vae = ["9 of 80,000", "-370.00 (paper -388.82 ± 0.76, +18.82)"]
    assert rows["β-VAE (KL = 145)"][1:3] == beta_vae
    del runs["cifar10-beta-145"]
    listed = write_table(TABLES["table-cifar10"], runs, tmp_path).splitlines()[2]
    assert "data.size, training.steps (all runs); control.value (VAE)" in listed


def test_terms_are_shown_only_for_unchanged_data(tmp_path):
    metrics = {"step": 80_000, "elbo": -370.0, "examples": 9, "split": "", "likelihood": ""}
    for name, changes, shown in (("same", [], True), ("smaller", ["data.size=32"], False)):
        run = evaluated_run(tmp_path / name, metrics, "cifar10-vae", changes)
        text = write_table(TABLES["table-cifar10"], {"cifar10-vae": [run]}, tmp_path)
        assert ("128x128, sum of squares, 100 latents" in text) == shown


def test_csv_file_records_how_fid_was_measured(tmp_path):
    scores = {"samples": {"score": 190.0}, "reconstructions": {"score": 170.0}}
    fid = {**scores, "pictures": 50, "split": "the test set"}
    metrics = {"step": 80_000, "fid": fid, "iwae": {"bound": -350.5}}
    run = evaluated_run(tmp_path / "run", metrics, "cifar10-vae")
    write_table(TABLES["table-cifar10"], {"cifar10-vae": [run]}, tmp_path)
    with (tmp_path / "table-cifar10.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    heads = ("FID", "FID of reconstructions", "FID images", "FID split", "IWAE", "KID")
    expected = ["190.0", "170.0", "50", "the test set", "-350.5", ""]
    assert [row[head] for head in heads] == expected


def test_numbers_of_a_column_have_equal_decimals(tmp_path):
    runs = {}
    for name, kl in (("shapes2d-laptop", 13.514), ("shapes2d-laptop-vae", 8.6104)):
        metrics = {"step": 9, "kl": kl, "mig_sampled": {"score": 0.12345}}
        runs[name] = [evaluated_run(tmp_path / name, metrics, name)]
    rows = cells_by_method(write_table(TABLES["table-laptop"], runs, tmp_path))
    assert (rows["ControlVAE (target 10)"][2], rows["VAE"][2]) == ("0.1235", "0.1235")
    assert (rows["ControlVAE (target 10)"][-1], rows["VAE"][-1]) == ("13.51", "8.61")
