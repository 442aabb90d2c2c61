"""The preprint: its numbers are those of the committed result files, and it has no others."""

import csv
import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import controlvae as cv

ROOT = Path(__file__).parents[2]
PREPRINT = ROOT / "docs" / "paper" / "preprint"
# Decimals of main.tex that are definitions, settings or arithmetic, and no results.
SETTINGS = {
    "0.2.0",  # version of the software
    "0.8",  # share of the median below which a run has failed
    "0.85",  # threshold of the label-free rule
    "0.02",  # initial weights of the failure study
    "0.99",
    "0.999",  # Adam
    "0.5",
    "1.5",  # set points
    "0.0079",  # least p-value of five seeds against five: 2 / 252
}


@pytest.fixture(scope="module")
def load():
    """Return a function that imports a script of the preprint or of the benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in (PREPRINT, ROOT / "benchmarks"):
            patch.syspath_prepend(str(folder))
        yield importlib.import_module


@pytest.fixture(scope="module")
def entries(load):
    return load("measured_numbers").all_entries()


def text_of_the_paper():
    """Return main.tex from the title to the references, without layout commands."""
    text = (PREPRINT / "main.tex").read_text(encoding="utf-8")
    body = text[text.index("\\title") : text.index("\\begin{thebibliography}")]
    return re.sub(r"\\includegraphics\[[^]]*\]", "", body)


@pytest.mark.parametrize(("name", "function"), [("numbers", "macros"), ("sources", "source_table")])
def test_committed_numbers_are_those_of_the_result_files(name, function, load, entries):
    written = (PREPRINT / f"{name}.tex").read_text(encoding="utf-8")
    assert written == getattr(load("measured_numbers"), function)(entries)


def test_every_file_that_is_named_exists(entries):
    for entry in entries.values():
        path = entry.file.partition(" (")[0]
        folder = ROOT if path.startswith(("tests/", "controlvae/")) else ROOT / "results"
        assert (folder / path).exists(), path


def test_every_number_is_used_and_every_macro_defined(entries):
    used = set(re.findall(r"\\([A-Z][A-Za-z]+)", text_of_the_paper()))
    assert used - {"E", "KL"} == set(entries)


def test_text_has_no_result_that_is_not_a_macro():
    found = set(re.findall(r"\d+(?:\.\d+)+", text_of_the_paper()))
    assert found <= SETTINGS


def test_figures_are_drawn_from_committed_files(load, tmp_path, monkeypatch):
    module = load("draw_figures")
    monkeypatch.setattr(module, "HERE", tmp_path)
    module.main()
    for name in module.FIGURES:
        assert (tmp_path / f"{name}.pdf").stat().st_size > 5_000
        assert (PREPRINT / f"{name}.pdf").is_file()


def test_pdf_shows_the_numbers(entries):
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext")
    pdf = PREPRINT / "main.pdf"
    assert pdf.stat().st_size < 900_000
    done = subprocess.run(["pdftotext", pdf, "-"], capture_output=True, text=True, check=True)
    text = done.stdout.replace("\u2212", "-")
    for name in ("FullEighteen", "OutsideEighteen", "PriceCifarCost", "PriceShapesDCost"):
        mean = entries[name].latex.split(" ")[0]
        assert text.count(mean) >= 2  # in the text and in the appendix


def test_committed_prices_are_those_of_the_tables(load, tmp_path, monkeypatch):
    module = load("price_of_a_nat")
    committed = ROOT / "results" / "price"
    shutil.copy(committed / "sweeps.csv", tmp_path)
    monkeypatch.setattr(module, "OUT", tmp_path)
    module.draw()
    for name in ("measured.csv", "table.md"):
        assert (tmp_path / name).read_text("utf-8") == (committed / name).read_text("utf-8")


def test_papers_bound_held_in_every_pair_above_the_plain_vae(load):
    pairs = load("price_of_a_nat").read_pairs(ROOT / "results" / "price" / "measured.csv")
    above = [pair for pair in pairs if pair.d > 0]
    assert len(above) >= 29
    assert all(pair.d - pair.cost <= cv.gain_bound(pair.kl_vae, pair.d) for pair in above)


def test_page_on_prices_has_the_table():
    folder = ROOT / "results" / "price"
    table = (folder / "table.md").read_text(encoding="utf-8").strip()
    assert table in (folder / "README.md").read_text(encoding="utf-8")
    with (folder / "measured.csv").open(encoding="utf-8") as file:
        seeds = {(row["data"], row["setting"], row["seed"]) for row in csv.DictReader(file)}
    settings = {(data, setting) for data, setting, _ in seeds}
    assert all(sum(s[:2] == each for s in seeds) >= 3 for each in settings)
