"""The HTML report: names, tables, figures, skipped runs, and its layout in a browser."""

import datetime
import html
import html.parser
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command import within
from logged_runs import LATENTS, METRICS, logged_run

from controlvae.errors import UserError
from controlvae.lab.config import override, preset
from controlvae.lab.evaluation.elbo import measure_step_response
from controlvae.lab.plots.figure_files import label_runs, save_pixels
from controlvae.lab.plots.image_grid import reconstruction_pixels_file, tile_images
from controlvae.lab.reports.comparison_tables import image_table, number_table, score_table
from controlvae.lab.reports.page import write_report
from controlvae.lab.reports.report_run import read_runs
from controlvae.lab.reports.sections import MAX_DETAILED_RUNS
from controlvae.lab.runs.folder import RunFolder, find_runs

MEASURED = {
    "step": 9,
    "kl_per_latent": LATENTS,
    "examples": 500,
    "split": "all",
    "likelihood": "squares",
    "elbo": -9.0,
    "reconstruction": 6.0,
    "kl": 3.0,
    "active_units": 2,
    "step_response": None,
}


def report(folders, path, **options):
    return write_report(folders, path, **options).read_text(encoding="utf-8")


def evaluated_run(path, name="shapes2d-quick", sets=(), **metrics):
    """Create a run folder with metrics and without a log."""
    folder = RunFolder(path)
    folder.create(override(preset(name), list(sets)), "controlvae train ...")
    folder.metrics_file.write_text(json.dumps({**MEASURED, **metrics}))
    return folder


def column(table, head):
    """Return the cells below the head of a table, by the name of the run."""
    place = table.heads.index(head)
    return {row[0]: row[place] for row in table.rows}


class Structure(html.parser.HTMLParser):
    """Ids, links and unclosed tags of a page."""

    VOID = ("meta", "img", "br", "link", "hr")

    def __init__(self, page):
        super().__init__()
        self.ids, self.links, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if values.get("href", "").startswith("#") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_seeds_of_one_experiment_have_mean_and_sd(tmp_path):
    migs = [0.5, 0.56, 0.59]
    folders = [logged_run(tmp_path, "shapes2d-quick", seed, 1_000) for seed in (1, 2, 3)]
    for folder, mig in zip(folders, migs, strict=True):
        folder.metrics_file.write_text(json.dumps({**METRICS, "mig_sampled": {"score": mig}}))
    cells = column(score_table(read_runs(folders)[0]), "MIG, sampled")
    expected = f"{np.mean(migs):.3f} ± {np.std(migs, ddof=1):.3f}"
    assert cells["mean ± sd of 3 seeds"] == expected
    folders[2].metrics_file.unlink()
    other = logged_run(tmp_path, "shapes2d-control-16", 3, 1_000)
    for mixed in (folders, [*folders[:2], other]):
        names = column(score_table(read_runs(mixed)[0]), "MIG, sampled")
        assert not any("mean" in name for name in names)


def test_notes_name_the_runs_they_apply_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    truth = {"names": ["shape", "x"], "unordered": ["shape"], "constant": ["y"]}
    truth |= {"examples": 400, "split": "all"}
    dci = {"disentanglement": 0.25, "completeness": 0.5, "informativeness": 0.75}
    skipped = {"mig_sampled": {"skipped": "no ordered factor"}, "rmig": {"skipped": "why"}}
    folders = [
        evaluated_run(Path("a"), ground_truth=truth, dci={**dci, "estimator": "trees"}),
        evaluated_run(Path("b"), sets=["data.images=200"], examples=200, **skipped),
        evaluated_run(Path("c")),
    ]
    runs, _ = read_runs(folders)
    numbers, scores = number_table(runs), score_table(runs)
    assert "a; c: Measured on 500 examples, 1 sample of z for each." in numbers.notes
    assert any(note.startswith("b: Measured on 200 examples") for note in numbers.notes)
    assert column(scores, "DCI, disentanglement") == {"a": "0.250", "b": "–", "c": "–"}
    (of_a,) = [note for note in scores.notes if note.startswith("a: ")]
    for part in ("400 examples", "shape, x", "constant: y", "trees"):
        assert part in of_a
    (of_b,) = [note for note in scores.notes if note.startswith("b: ")]
    assert "no ordered factor" in of_b
    assert "No RMIG: why." in of_b
    page = report(folders, Path("all.html"))
    assert "not comparable: a and c on Shapes2D(size=32, images=20000); b on" in page
    assert "not comparable" not in report(folders[::2], Path("two.html"))
    assert "Disentanglement" not in report(folders[1:], Path("none.html"))


def test_best_by_validation_is_shown_only_where_it_differs(tmp_path):
    likeness = {"ssim": 0.9, "psnr": 20.0, "examples": 5, "from": "the mean", "split": "all"}
    last = evaluated_run(tmp_path / "last", likeness=likeness, best={"step": 9, "elbo": -9.0})
    heads = image_table(read_runs([last])[0]).heads
    assert "ELBO" in heads
    assert "ELBO, best by validation" not in heads
    early = evaluated_run(tmp_path / "early", likeness=likeness, best={"step": 5, "elbo": -8.5})
    table = image_table(read_runs([last, early])[0])
    best = column(table, "ELBO, best by validation")
    assert list(best.values())[:2] == ["-9.00", "-8.50"]
    assert any("step 5" in note for note in table.notes)


def test_page_is_well_formed_and_its_contents_lead_somewhere(tmp_path):
    terms = {"p": 0.1, "i": 0.2, "saturated": 0.0}
    folders = [
        logged_run(tmp_path, name, 1, 4_000, **terms)
        for name in ("shapes2d-quick", "shapes2d-quick-beta")
    ]
    for folder in folders:
        folder.metrics_file.write_text(json.dumps({**MEASURED, **METRICS}))
    page = report(folders, tmp_path / "report.html", date=datetime.date(2026, 2, 3))
    structure = Structure(page)
    assert structure.open == []
    assert len(set(structure.ids)) == len(structure.ids)
    assert {link[1:] for link in structure.links} <= set(structure.ids)
    assert {"#verdict", "#curves", "#table-1", "#run-2"} <= set(structure.links)
    for part in ("viewport", "prefers-color-scheme", "@media print", "<dd>2026-02-03</dd>"):
        assert part in page
    assert page == report(folders, tmp_path / "again.html", date=datetime.date(2026, 2, 3))


def test_page_of_many_runs_shows_what_they_share(tmp_path):
    count = MAX_DETAILED_RUNS + 1
    for seed in range(1, count + 1):
        folder = logged_run(tmp_path, "shapes2d-quick", seed, 2_000, p=0.1, i=0.2, saturated=0.0)
        folder.metrics_file.write_text(json.dumps({**MEASURED, **METRICS}))
    page = report(find_runs(tmp_path), tmp_path / "report.html")
    structure = Structure(page)
    assert structure.open == []
    assert [link for link in structure.links if link.startswith("#run-")][-1] == f"#run-{count}"
    assert page.index("seed 2<") < page.index("seed 10<")  # by number
    assert page.count("<svg") == 3  # KL, weight and reconstruction of all runs
    few = report(find_runs(tmp_path)[:2], tmp_path / "few.html")
    assert few.count("<svg") > 3


def test_names_are_escaped(tmp_path):
    folder = logged_run(tmp_path, "shapes2d-quick", 1, 2_000, evaluated=False, p=0.0, i=0.0)
    content = json.loads(folder.experiment_file.read_text())
    content["experiment"]["name"] = "<script>alert($x$)</script>"
    folder.experiment_file.write_text(json.dumps(content))
    page = report([folder], tmp_path / "report.html")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


NAMES = ["x" * 200, "x" * 100 + "y" + "x" * 99, "tab\tname", "line\nbreak", r"$\frac{1", "日本語"]


@pytest.mark.filterwarnings("error")
def test_odd_names_of_runs_are_drawn_without_warnings(tmp_path):
    run = logged_run(tmp_path, "shapes2d-quick", 1, 2_000, p=0.1, i=0.2, saturated=0.0)
    run.metrics_file.write_text(json.dumps({**MEASURED, **METRICS}))
    for name in NAMES:
        shutil.copytree(run.path, tmp_path / "odd" / name)
        image = tmp_path / "odd" / name / "figures" / "reconstruction.png"
        image.parent.mkdir()
        for path in (image, reconstruction_pixels_file(image)):
            save_pixels(tile_images(np.zeros((2, 4, 8, 8, 1))).astype(np.uint8), path)
    page = report(find_runs(tmp_path / "odd"), tmp_path / "report.html")
    assert all(html.escape(name) in page for name in NAMES)
    assert Structure(page).open == []


def test_labels_of_figures_are_short_and_distinct():
    labels = label_runs([*NAMES, "plain"])
    assert len(set(labels)) == len(labels)
    assert all(label.isprintable() and len(label) < 60 for label in labels)
    assert labels[-1] == "plain"


def test_unreadable_run_is_skipped_and_named(tmp_path):
    good = logged_run(tmp_path, "shapes2d-quick", 1, 2_000, evaluated=False, p=0.0, i=0.0)
    for name, file in (("torn", "experiment.json"), ("damaged", "metrics.json")):
        shutil.copytree(good.path, tmp_path / name)
        (tmp_path / name / file).write_text("{")
    bad = [RunFolder(tmp_path / name) for name in ("torn", "damaged", "missing")]
    page = report([bad[0], good, *bad[1:]], tmp_path / "report.html")
    assert page.count("skipped ") == 3
    for folder in bad:
        assert str(folder.path) in page
    with pytest.raises(UserError, match="missing"):
        write_report(bad, tmp_path / "none.html")


def test_report_command_skips_unreadable_runs(tmp_path):
    good = logged_run(tmp_path, "shapes2d-quick", 1, 2_000, evaluated=False, p=0.0, i=0.0)
    torn = shutil.copytree(good.path, tmp_path / "torn")
    (torn / "log.jsonl").write_text("not a record\n")
    (torn / "experiment.json").write_text("{")
    done = within("report", good.path, torn, "--out", "both.html", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"skipped {torn}" in done.stderr
    assert str(torn) in (tmp_path / "both.html").read_text()
    done = within("report", torn, "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_progress_rises_to_one(tmp_path):
    folders = [logged_run(tmp_path, "shapes2d-quick", s, 2_000, False, p=0, i=0) for s in (1, 2)]
    calls = []
    write_report(folders, tmp_path / "report.html", progress=lambda *call: calls.append(call))
    shares = [share for share, _ in calls]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert any("run 2 of 2" in text for _, text in calls)


def test_total_correlation_is_plotted_where_it_is_logged(tmp_path):
    caption = "Total correlation on the training batches"
    terms = {"p": 0.0, "i": 0.0}
    kl = logged_run(tmp_path, "shapes2d-control-18", 1, 4_000, evaluated=False, **terms)
    tc = logged_run(tmp_path, "shapes2d-control-16", 1, 4_000, evaluated=False, tc=0.2, **terms)
    assert caption not in report([kl], tmp_path / "kl.html")
    assert caption in report([tc], tmp_path / "tc.html")


@pytest.mark.parametrize(
    ("sets", "title"),
    [
        (["training.seed=2"], "shapes2d-quick, seed 1, shapes2d-quick, seed 2"),
        (["training.seed=2", "control.target=12"], "one, other"),
        (["training.seed=2", "training.steps=9"], "one, other"),
        ([], "one, other"),
    ],
)
def test_runs_are_named_by_seed_only_if_nothing_else_differs(tmp_path, monkeypatch, sets, title):
    monkeypatch.chdir(tmp_path)
    for name, more in (("one", []), ("other", sets)):
        RunFolder(Path(name)).create(override(preset("shapes2d-quick"), more), "")
    page = report([RunFolder(Path("one")), RunFolder(Path("other"))], Path("report.html"))
    assert f"<h1>{title}</h1>" in page


def test_reconstruction_target_below_zero_is_reported(tmp_path):
    folder = RunFolder(tmp_path / "run")
    sets = ["control=Geco(-900)", "objective.likelihood=Gaussian(0.01)"]
    folder.create(override(preset("cifar10-geco"), sets), "")
    record = {"elbo": 800.0, "kl": 90.0, "target": -900.0, "beta": 0.9, "p": 0.0, "i": -0.1}
    record |= {"saturated": 0.0, "reconstruction_sd": 5.0, "kl_per_latent": [1.0, 0.5]}
    lines = [{"step": 500 * n, "reconstruction": -885.0 - n, **record} for n in range(1, 30)]
    folder.log_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report([folder], tmp_path / "report.html")
    assert "step 14,500 of 80,000" in page
    assert "holds its target: reconstruction" in page
    assert measure_step_response(folder)["settling_time"] == 500.0


def test_data_is_shown_once_above_all_reconstructions(tmp_path):
    rng = np.random.default_rng(0)
    data = rng.random((1, 4, 9, 9, 1))
    folders = [evaluated_run(tmp_path / name, sets=[f"training.seed={name}"]) for name in "12"]
    for folder in folders:
        figure = folder.figures / "reconstruction.png"
        tiles = tile_images(np.concatenate([data, rng.random((1, 4, 9, 9, 1))]))
        for path in (figure, reconstruction_pixels_file(figure)):
            save_pixels((tiles * 255).round().astype(np.uint8), path, step=9)
    assert report(folders, tmp_path / "shared.html").count("data:image/png") == 1
    # A run evaluated by an older version has the figure alone.
    reconstruction_pixels_file(folders[0].figures / "reconstruction.png").unlink()
    assert report(folders, tmp_path / "old.html").count("data:image/png") == 2


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("width", [400, 1_200])
def test_nothing_is_cut_off_in_a_browser(tmp_path, tab, count, width):
    dci = {"disentanglement": 0.25, "completeness": 0.5, "informativeness": 0.75}
    scores = {name: {"score": 0.123} for name in ("mig_sampled", "rmig", "mig_histogram", "sap")}
    scores |= {name: {"score": 0.123} for name in ("sap_continuous", "modularity")}
    scores |= {name: {"score": 0.123} for name in ("factor_vae_score", "beta_vae_score")}
    scores["dci"] = dci
    folders = [
        evaluated_run(tmp_path / str(n), sets=[f"training.seed={n}"], **scores)
        for n in range(count)
    ]
    path = write_report(folders, tmp_path / "report.html")
    tab.resize(width, 900)
    tab.open(path.resolve().as_uri())
    tab.wait("document.querySelector('#commands') !== null")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    tables = "[...document.querySelectorAll('.wide')]"
    # On a narrow screen a wide table scrolls in its own box.
    fits = f"{tables}.every((box) => box.scrollWidth <= box.clientWidth)"
    assert tab.run(fits) or width == 400
    assert tab.complaints == []
