"""The notebooks in examples/notebooks: every cell runs, and training shows its live curve."""

from pathlib import Path

import pytest

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"
CURVES = {"train_my_model": 1, "choose_a_target": 6}  # calls of lab.fit


def outputs_of(notebook, kind):
    """Return the outputs of one kind of all cells."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [one for cell in cells for one in cell.outputs if one.output_type == kind]


def test_every_notebook_is_listed():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(CURVES)


@pytest.mark.parametrize("name", CURVES)
def test_a_notebook_has_no_saved_outputs(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("name", CURVES)
def test_a_notebook_runs_and_shows_the_live_curve(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=folder).execute()  # a failure raises
    shown = [one.data.get("text/html", "") for one in outputs_of(notebook, "display_data")]
    curves = [page for page in shown if "controlvae-curve" in page]
    assert len(curves) == CURVES[name]
    assert all("<polyline" in page and "0:00 left" in page for page in curves)
    pictures = outputs_of(notebook, "display_data") + outputs_of(notebook, "execute_result")
    assert sum("image/png" in one.data for one in pictures) == 2
    assert not outputs_of(notebook, "error")
