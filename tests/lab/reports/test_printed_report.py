"""The report as a PDF: a real browser prints it, and nothing of the page is missing."""

import html.parser
import itertools
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from browser import CHROMIUM
from command import within
from logged_runs import LATENTS, METRICS, logged_run
from PIL import Image

from controlvae.errors import RunError, UserError
from controlvae.lab.reports import pdf
from controlvae.lab.reports.page import write_report
from controlvae.lab.runs.folder import find_runs

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("pdftotext") is None,
    reason="needs Chromium and poppler-utils: make browser",
)
SCORES = (
    "mig_sampled",
    "rmig",
    "mig_histogram",
    "sap",
    "sap_continuous",
    "factor_vae_score",
    "beta_vae_score",
    "modularity",
    "explicitness",
    "mig_sup",
)


class PageText(html.parser.HTMLParser):
    """The words of a page's body, and the texts of its table cells, in order."""

    def __init__(self, page):
        super().__init__()
        self.words, self.cells, self._hidden, self._in_cell = [], [], 0, False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        # What is for the screen alone: contents, and the lines that unfold a section.
        self._hidden += tag in ("style", "title", "nav", "summary", "svg")
        if tag in ("td", "th"):
            self._in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("style", "title", "nav", "summary", "svg")
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if not self._hidden:
            self.words += data.split()
        if self._in_cell:
            self.cells[-1] += data


def seeded_scores(seed):
    """Return scores of which each number is found only once in a report."""
    values = {name: {"score": 0.1 + 0.01 * k + 0.001 * seed} for k, name in enumerate(SCORES)}
    names = ("disentanglement", "completeness", "informativeness")
    values["dci"] = {name: 0.3 + 0.01 * k + 0.001 * seed for k, name in enumerate(names)}
    return values


def write_page(tmp_path, count):
    terms = {"p": 0.1, "i": 0.2, "saturated": 0.0}
    for seed in range(1, count + 1):
        folder = logged_run(tmp_path, "shapes2d-quick", seed, 2_000, **terms)
        measured = {
            "step": 2_000,
            "kl_per_latent": LATENTS,
            "examples": 500,
            "split": "all",
            "likelihood": "squares",
            "elbo": -9.0 - seed,
            "reconstruction": 6.0,
            "kl": 3.0,
            "active_units": 2,
            "step_response": None,
        }
        folder.metrics_file.write_text(json.dumps({**METRICS, **measured, **seeded_scores(seed)}))
        folder.figures.mkdir(exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 256, (96, 96, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder.figures / "samples.png")
    return write_report(find_runs(tmp_path), tmp_path / "report.html")


def read_pdf(path):
    """Return the words of a PDF without the breaks that wrapping put into them."""
    done = subprocess.run(["pdftotext", "-layout", path, "-"], capture_output=True, check=True)
    raw = subprocess.run(["pdftotext", "-raw", path, "-"], capture_output=True, check=True)
    return (done.stdout + raw.stdout).decode()


def draw_pages(path, folder):
    """Return the pages of a PDF as arrays of grey values."""
    subprocess.run(["pdftoppm", "-r", "30", "-gray", path, folder / "page"], check=True)
    return [np.asarray(Image.open(page)) for page in sorted(folder.glob("page*.pgm"))]


def squeeze(text):
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_on_the_page_is_in_the_pdf(tmp_path, tab, count, scheme):
    page = write_page(tmp_path, count)
    tab.emulate(scheme)
    tab.open(page.resolve().as_uri())
    tab.wait("document.querySelector('#commands') !== null")
    path = tab.pdf(tmp_path / "report.pdf", printBackground=True, preferCSSPageSize=True)
    text, printed = PageText(page.read_text()), read_pdf(path)
    assert len(text.cells) > 60
    missing = [cell for cell in text.cells if squeeze(cell) not in squeeze(printed)]
    assert missing == []
    known = squeeze(printed)
    assert [word for word in dict.fromkeys(text.words) if squeeze(word) not in known] == []
    for closed in ('"kl_weights"', "Active units (Burda", "The weight β of the KL and its two"):
        assert squeeze(closed) in known  # settings, notes and folded figures
    pictures = subprocess.run(["pdfimages", "-list", path], capture_output=True, check=True)
    assert pictures.stdout.decode().count(" image ") >= count
    pages = draw_pages(path, tmp_path)
    assert all(np.median(drawn) > 250 for drawn in pages)  # white paper
    # The lowest ink of each page; the last page, and one before a page that lies, may end early.
    for drawn, following in itertools.pairwise(pages):
        rows = np.flatnonzero((drawn < 200).any(1))
        if drawn.shape == following.shape:
            assert rows[-1] > 0.5 * len(drawn)


def test_report_command_prints_a_pdf(tmp_path):
    write_page(tmp_path, 1)
    run = find_runs(tmp_path)[0].path
    done = within("report", run, "--out", "one.html", "--pdf", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "one.pdf"
    assert squeeze("Settings and versions") in squeeze(read_pdf(tmp_path / "one.pdf"))


def test_report_command_without_a_browser_says_so_first(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="needs Chromium"):
        pdf.print_pdf(tmp_path / "report.html")


def test_a_browser_that_fails_is_named(tmp_path, monkeypatch):
    broken = tmp_path / "bin" / "chromium"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    (tmp_path / "report.html").write_text("<p>page</p>")
    with pytest.raises(RunError, match=r"could not print .* status 7"):
        pdf.print_pdf(tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "report.html"]
