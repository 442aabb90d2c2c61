"""The live curve of notebooks: what it draws, how often, and that a real kernel shows it."""

import math
import re
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
import torch
from custom_models import PlainVAE, groups

import controlvae as cv
from controlvae import lab
from controlvae.errors import Interrupted
from controlvae.lab.runs.curve_svg import Curve, draw_curves
from controlvae.lab.training.display import ConsoleDisplay, Display, make_display
from controlvae.lab.training.notebook import NotebookDisplay


class Cell:
    """An output of a notebook, which keeps every state it had."""

    def __init__(self):
        self.opened, self.states = 0, []

    def show(self, output):
        self.opened += 1
        self.states.append(output)
        return self.states.append


def fit(path, display, **options):
    torch.manual_seed(0)
    settings = {"law": cv.Auto(3.0), "steps": 60, "batch": 16, "device": "cpu", **options}
    return lab.fit(PlainVAE, groups(), run=path, progress=display, **settings)


def svg_of(output):
    """Return the parsed SVG of an output."""
    return ET.fromstring(re.search(r"<svg.*</svg>", output, re.DOTALL)[0])


def lines_of(svg):
    """Return the points of every solid and of every dashed line."""
    found = [node for node in svg.iter() if node.tag.endswith("polyline")]
    dashed = [node for node in found if node.get("stroke-dasharray")]
    return [node for node in found if node not in dashed], dashed


def test_one_output_is_updated_in_place_and_the_last_state_stays(tmp_path):
    cell = Cell()
    fit(tmp_path / "run", NotebookDisplay(cell.show, seconds=0.0))
    assert cell.opened == 1
    assert len(cell.states) > 3
    first, last = cell.states[0], cell.states[-1]
    assert "step 60/60" in last["text/plain"]
    assert "step 60/60" in last["text/html"]
    solid, dashed = lines_of(svg_of(last["text/html"]))
    assert len(solid) == 2  # KL and β
    assert len(dashed) == 1  # the target
    assert len(lines_of(svg_of(first["text/html"]))[0][0].get("points").split()) < 60
    assert len(solid[0].get("points").split()) == 60


def test_drawings_are_rare(tmp_path):
    cell = Cell()
    fit(tmp_path / "run", NotebookDisplay(cell.show, seconds=3600.0))
    assert len(cell.states) == 2  # the first update, and the last state


def test_every_seed_has_a_line(tmp_path):
    cell = Cell()
    fit(tmp_path / "runs", NotebookDisplay(cell.show), seeds=3)
    svg = svg_of(cell.states[-1]["text/html"])
    assert len(lines_of(svg)[0]) == 6
    assert [f"seed {n}" in "".join(svg.itertext()) for n in (1, 2, 3)] == [True] * 3


def test_an_interrupted_run_shows_where_it_stopped(tmp_path):
    cell = Cell()

    def interrupt(progress):
        if progress.step >= 20:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        fit(tmp_path / "run", NotebookDisplay(cell.show, 3600.0), callbacks=[interrupt])
    assert re.search(r"step [2-5]\d/60", cell.states[-1]["text/plain"])


def test_messages_go_to_stdout(capsys):
    NotebookDisplay(Cell().show).note("a message")
    assert capsys.readouterr() == ("controlvae: a message\n", "")


def test_a_run_shows_its_curve_and_escapes_values(tmp_path):
    run = fit(tmp_path / "run", False, name="<script>alert(1)</script>")
    page = run._repr_html_()
    assert len(lines_of(svg_of(page))[0]) == 2
    assert page.index("<svg") < page.index("<table")
    assert "<script>" not in page
    cell = Cell()
    fit(tmp_path / "b", NotebookDisplay(cell.show), name="<script>", seeds=2)
    assert "<script>" not in cell.states[-1]["text/html"]


def test_the_line_passes_through_the_values():
    curve = Curve("a, seed 1", "kl")
    for step, kl in ((0, 0.0), (50, 5.0), (100, 10.0)):
        curve.add({"step": step, "kl": kl, "target": 10.0, "beta": 1.0})
    (line, _), (target,) = lines_of(svg_of(draw_curves([curve], 0, 100)))
    points = [tuple(map(float, one.split(","))) for one in line.get("points").split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y0 > y2  # larger values are higher up
    assert float(target.get("points").split()[-1].split(",")[1]) == pytest.approx(y2)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"step": 1, "kl": math.nan, "target": None, "beta": math.inf}],
        [{"step": 1, "kl": 0.0, "target": None, "beta": 0.0}],
        [{"step": 1, "kl": -40.0, "target": -40.0, "beta": 1.0}],
        [{"step": n, "kl": 1e12 / n, "target": 5.0, "beta": 10.0**-n} for n in range(1, 9)],
        [{"step": n, "kl": 5.0, "target": 5.0, "beta": 1.0} for n in range(1, 5000)],
    ],
    ids=["none", "not finite", "zeros", "negative", "many magnitudes", "long"],
)
def test_any_log_is_drawn_within_its_frame(records):
    curve = Curve("a, seed 1", "kl")
    for record in records:
        curve.add(record)
    text = draw_curves([curve], 0, 5000)
    svg = svg_of(text)
    width, height = map(float, (svg.get("width"), svg.get("height")))
    for line in [one for kind in lines_of(svg) for one in kind]:
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert len(text) < 30_000


class ZMQInteractiveShell:
    """Named as the shell of a notebook's kernel."""


class Shell(ZMQInteractiveShell):
    """As in Colab: a shell derived from it."""


class TerminalInteractiveShell:
    """Named as the shell of `ipython` in a terminal."""


@pytest.mark.parametrize(
    ("shell", "kind"),
    [
        (ZMQInteractiveShell(), NotebookDisplay),
        (Shell(), NotebookDisplay),
        (TerminalInteractiveShell(), ConsoleDisplay),
        (None, ConsoleDisplay),
    ],
)
def test_the_display_follows_the_shell(shell, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert type(make_display(True)) is kind
    assert type(make_display(False)) is Display


def test_without_ipython_the_terminal_is_used(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert type(make_display(True)) is ConsoleDisplay
    assert "IPython" not in sys.modules


def test_a_kernel_shows_the_curve_of_train(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = (
        "from controlvae import lab\n"
        "small = {'training.steps': 20, 'training.log_every': 5, 'data.images': 64}\n"
        "run = lab.train('shapes2d-quick', run='runs/a', overrides=small, device='cpu')\n"
        "run"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = notebook.cells[0].outputs
    live = [one for one in outputs if one.output_type == "display_data"]
    (result,) = [one for one in outputs if one.output_type == "execute_result"]
    assert len(live) == 1
    assert "step 20/20" in live[0].data["text/html"]  # the state after the last update
    assert lines_of(svg_of(live[0].data["text/html"]))[0]
    assert "controlvae-curve" in result.data["text/html"]
    assert not [one for one in outputs if one.get("name") == "stderr"]
