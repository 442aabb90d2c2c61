"""The Python API of the lab: train, resume, evaluate, report and load runs without the shell."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import assert_same_run

from controlvae import lab
from controlvae.errors import Interrupted, RunError, UserError
from controlvae.lab.runs.data import MissingDataWarning
from controlvae.lab.runs.folder import RunFolder
from controlvae.laws import Auto

TINY = {
    "training.steps": 60,
    "training.batch": 16,
    "training.log_every": 7,
    "data.images": 256,
    "model.channels": (4, 4, 4),
    "model.hidden": 16,
}
TEXT = {"data.sentences": 300, "training.steps": 10, "training.log_every": 5, "model.width": 16}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run."""
    path = tmp_path_factory.mktemp("api") / "runs" / "first"
    return lab.train("shapes2d-quick", run=path, overrides=TINY, device="cpu", progress=False)


def test_train_returns_a_loaded_run(trained):
    assert isinstance(trained, lab.LoadedRun)
    assert trained.step == 60
    assert trained.log[-1]["step"] == 60
    assert trained.folder.has_ended()
    assert "controlvae train shapes2d-quick" in trained.folder.manifest()["command"]


def test_overrides_are_values_or_texts(trained, tmp_path):
    texts = [f"{path}={value}" for path, value in TINY.items()]
    run = lab.train("shapes2d-quick", run=tmp_path / "b", overrides=texts, device="cpu")
    assert run.experiment == trained.experiment
    assert_same_run(trained.folder.path, run.folder.path)


def test_laws_are_accepted_as_overrides(tmp_path):
    short = {**TINY, "training.steps": 2, "control": Auto(target=5.0)}
    run = lab.train("shapes2d-quick", run=tmp_path / "a", overrides=short, progress=False)
    assert run.experiment.control == Auto(target=5.0)


def test_seeds_return_a_list(tmp_path):
    runs = lab.train(
        lab.preset("shapes2d-quick"),
        run=tmp_path / "seeds",
        overrides={**TINY, "training.steps": 3},
        seeds=2,
        progress=False,
    )
    assert [run.experiment.training.seed for run in runs] == [1, 2]


def test_progress_callback_receives_updates(tmp_path, capsys):
    updates = []
    short = {**TINY, "training.steps": 5}
    lab.train("shapes2d-quick", run=tmp_path / "a", overrides=short, progress=updates.append)
    assert updates[-1].step == 5
    assert capsys.readouterr() == ("", "")


def test_resume_after_a_time_limit_ends_the_same(trained, tmp_path):
    path = tmp_path / "limited"
    first = lab.train("shapes2d-quick", run=path, overrides=TINY, time_limit=0, progress=False)
    assert 0 < first.step < 60
    assert lab.resume(first, device="cpu", progress=False).step == 60
    assert_same_run(trained.folder.path, path)


def test_ctrl_c_leaves_a_resumable_run(trained, tmp_path):
    path = tmp_path / "interrupted"

    def interrupt(progress):
        if progress.step >= 10:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="of 60"):
        lab.train("shapes2d-quick", run=path, overrides=TINY, device="cpu", progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    assert RunFolder(path).events()[-1]["event"] == "stopped"
    lab.resume(path, device="cpu", progress=False)
    assert_same_run(trained.folder.path, path)


def test_training_works_in_a_thread(tmp_path):
    done = []
    short = {**TINY, "training.steps": 3}

    def train():
        done.append(
            lab.train("shapes2d-quick", run=tmp_path / "a", overrides=short, progress=False)
        )

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert done[0].step == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"preset": "shapes2d-quik"}, UserError),
        ({"overrides": {"control.kii": 1}}, UserError),
        ({"device": "tpu"}, UserError),
        ({"time_limit": "soon"}, UserError),
        ({"seeds": 0}, UserError),
        ({"overrides": {**TINY, "optimiser.rate": 1e18}}, RunError),
    ],
)
def test_errors_are_exceptions(tmp_path, change, error):
    arguments = {"preset": "shapes2d-quick", "run": tmp_path / "a", "progress": False, **change}
    with pytest.raises(error) as caught:
        lab.train(arguments.pop("preset"), **arguments)
    assert "\n" not in str(caught.value)


def test_evaluate_and_report(trained, tmp_path):
    path = shutil.copytree(trained.folder.path, tmp_path / "run")
    metrics = lab.evaluate(path, examples=50, iwae=0, device="cpu", progress=False)
    assert metrics == lab.load_run(path).metrics
    page = lab.report([path], tmp_path / "report.html", examples=50, progress=False)
    assert page.read_text().startswith("<!")
    with pytest.raises(UserError, match="HTML"):
        lab.report([path], tmp_path / "report.pdf")


def test_report_skips_unreadable_runs(trained, tmp_path, capsys):
    for name in ("good", "corrupt"):
        shutil.copytree(trained.folder.path, tmp_path / name)
    (tmp_path / "corrupt" / "experiment.json").write_text("{")
    page = lab.report(tmp_path, tmp_path / "report.html", examples=50)
    assert page.is_file()
    assert "skipped" in capsys.readouterr().err
    with pytest.raises(UserError, match="corrupt"):
        lab.report(tmp_path / "corrupt", progress=False)


def test_loaded_run_samples_and_reconstructs(trained):
    assert trained.sample(5).shape == (5, *trained.shape)
    x = trained.examples.batch(torch.arange(3))
    assert trained.reconstruct(x).shape == x.shape
    with pytest.raises(UserError, match="float images"):
        trained.reconstruct((x * 255).byte())
    assert trained.plot().axes
    assert len(repr(trained)) < 300
    assert "<table>" in trained._repr_html_()


def test_media_functions_write_files(trained, tmp_path):
    for make in (lab.sample, lab.reconstruct, lab.traverse, lab.interpolate):
        out = tmp_path / f"{make.__name__}.png"
        assert make(trained, out=out).files == [out]
        assert out.is_file()


def test_text_run_samples_sentences(tmp_path):
    run = lab.train("text-quick", run=tmp_path / "text", overrides=TEXT, progress=False)
    assert len(run.sample(3)) == 3
    assert lab.sample(run, 2).text.count("\n") == 1
    assert (tmp_path / "text" / "words.json").is_file()


def test_branch_and_set_target(trained, tmp_path):
    child = lab.branch(trained, tmp_path / "branch", {"training.steps": 80})
    assert child.step == 60
    assert lab.set_target(child, 7.0) == [child.folder]
    assert lab.resume(child, device="cpu", progress=False).log[-1]["target"] == 7.0
    with pytest.raises(UserError, match="ended"):
        lab.set_target(trained, 7.0)


def test_requests_of_old_versions_are_applied(trained, tmp_path):
    child = lab.branch(trained, tmp_path / "branch", {"training.steps": 80})
    child.folder.old_request_file.write_text(json.dumps({"target": 9.0}))
    resumed = lab.resume(child, device="cpu", progress=False)
    assert resumed.log[-1]["target"] == 9.0
    assert not child.folder.old_request_file.exists()


def test_sweep_returns_runs_by_label(tmp_path):
    short = {**TINY, "training.steps": 20}
    result = lab.sweep(
        "shapes2d-quick",
        {"control.target": [4, 6]},
        overrides=short,
        run=tmp_path / "sweep",
        device="cpu",
        progress=False,
    )
    assert list(result.runs) == ["target=4", "target=6"]
    assert all(folder.has_ended() for folders in result.runs.values() for folder in folders)


def test_simulate_run_returns_traces(tmp_path):
    run = lab.train(
        "shapes2d-quick",
        run=tmp_path / "run",
        overrides={**TINY, "training.steps": 400},
        device="cpu",
        progress=False,
    )
    result = lab.simulate_run(run, [Auto(5.0), "Constant(1)"], steps=100, out=tmp_path / "a.png")
    assert len(result.traces) == 3
    assert result.figure.is_file()


@pytest.fixture
def image_run(tmp_path):
    """A run over a folder of images, with a relative path."""
    (tmp_path / "faces").mkdir()
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "faces" / f"{number}.png")
    code = (
        "from controlvae import lab\n"
        "lab.train('images', run='runs/faces', progress=False, device='cpu', overrides={"
        "'data.path': 'faces', 'data.size': 16, 'model.channels': (4, 4), 'training.steps': 2,"
        "'training.batch': 4, 'training.log_every': 1, 'training.validation': 0,"
        "'training.validate_every': 0})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    return tmp_path / "runs" / "faces"


def test_data_is_found_from_any_working_directory(image_run, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert len(lab.load_run(image_run).examples) == 22
    shutil.rmtree(tmp_path / "faces")
    with pytest.warns(MissingDataWarning, match="without its data"):
        run = lab.load_run(image_run)
    assert len(run.examples) == 0
    assert run.sample(2).shape == (2, 3, 16, 16)
    with pytest.raises(UserError) as caught:
        run.reconstruct()
    assert "--data-root" in str(caught.value)
    assert "--set" not in str(caught.value)


BARE = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("typer", "rich", "click"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without_extras(code, cwd):
    return subprocess.run(
        [sys.executable, "-c", BARE + code], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_api_works_without_typer_and_rich(tmp_path):
    code = (
        "from controlvae import lab\n"
        "from unittest import mock\n"
        "with mock.patch.object(sys.stderr, 'isatty', return_value=True):\n"
        "    run = lab.train('shapes2d-quick', device='cpu', overrides={'training.steps': 2,"
        " 'data.images': 64, 'training.batch': 8})\n"
        "print(run)\n"
        "for name in lab.__all__: getattr(lab, name)\n"
    )
    done = run_without_extras(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finished at step 2" in done.stdout
    assert "LoadedRun('runs/shapes2d-quick'" in done.stdout


def test_command_without_the_extra_names_it(tmp_path):
    code = "sys.argv = ['controlvae', 'presets']\nfrom controlvae.__main__ import main\nmain()"
    done = run_without_extras(code, tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'controlvae[lab]'" in done.stderr


def test_importing_the_lab_is_light(tmp_path):
    code = "import controlvae.lab; print('torch' in sys.modules)"
    assert run_without_extras(code, tmp_path).stdout.strip() == "False"


def test_command_line_is_short():
    """A command parses options, calls one function and prints. Most of its lines are options."""
    folder = Path(lab.__file__).parent / "cli"
    text = "".join(file.read_text() for file in folder.rglob("*.py"))
    assert len(text.splitlines()) <= 60 * len(re.findall(r"^@cli\.command\(", text, re.MULTILINE))
