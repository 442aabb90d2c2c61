"""Tables 6 and 7 by factor: the committed files against the committed scores, and the paper's sums."""

import csv
import importlib
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from controlvae.paper.disentangling_tables import DISENTANGLING_TABLES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "disentangling"
FACTORS = ("x", "y", "shape", "scale", "orientation")
TABLES = {table.name: table for table in DISENTANGLING_TABLES if table.name.startswith("ablation")}


def scores(preset):
    with (RESULTS / "scores.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["run"] == preset]


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_the_mean_of_the_scores(name):
    lines = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    for row in TABLES[name].rows:
        line = next(line for line in lines if line.startswith(f"| {row.method} |"))
        cells = [
            tuple(map(float, re.match(r" ([\d.]+) ± ([\d.]+) ", cell).groups()))
            for cell in line.split("|")[4:-1]
        ]
        for (mean, sd), column in zip(cells, (*FACTORS, "RMIG"), strict=True):
            source = column if column == "RMIG" else f"RMIG of {column}"
            values = [float(score[source]) for score in scores(row.preset)]
            assert len(values) == 5
            assert mean == pytest.approx(fmean(values), abs=6e-5)
            assert sd == pytest.approx(stdev(values), abs=6e-5)


@pytest.mark.parametrize("name", TABLES)
def test_the_command_writes_what_is_committed(name, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("factor_tables")
    committed = {
        suffix: (RESULTS / f"{name}{suffix}").read_text(encoding="utf-8")
        for suffix in (".md", ".csv")
    }
    for suffix, text in committed.items():
        (tmp_path / f"{name}{suffix}").write_text(text, encoding="utf-8")
    with (RESULTS / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    module.write_table(TABLES[name], rows)
    for suffix, text in committed.items():
        assert (tmp_path / f"{name}{suffix}").read_text(encoding="utf-8").split() == text.split()


def test_the_papers_rmig_is_the_mean_of_its_factors_but_for_one_printed_twice():
    """Table 2 prints 0.1037 for the orientation of KL = 16, Tables 6 and 7 print 0.0178."""
    off = {}
    for table in TABLES.values():
        for row in table.rows:
            mean = fmean(row.printed[factor].mean for factor in FACTORS)
            if abs(mean - row.printed["RMIG"].mean) > 1e-3:
                off[row.preset] = row.printed["RMIG"].mean - mean
    assert off == {"shapes2d-control-16": pytest.approx((0.1037 - 0.0178) / 5, abs=1e-4)}
