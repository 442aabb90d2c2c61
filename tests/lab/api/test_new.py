"""`controlvae new`: the file it writes trains, reports and exports, and nothing is overwritten."""

import json
import re

import pytest
from command import controlvae

import controlvae as cv
from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.api.new import next_commands


def test_the_new_file_trains_reports_and_exports(tmp_path):
    done = controlvae("new", "my_vae", cwd=tmp_path)
    train, report, export = re.findall(r"^controlvae (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == 0
    assert train == "train my_vae.py"
    short = ("--set", "training.steps=30", "--set", "control.target=5", "--device", "cpu")
    done = controlvae(*train.split(), *short, cwd=tmp_path)
    assert "finished at step 30" in done.stdout, done.stderr
    settings = json.loads((tmp_path / "runs/my_vae/experiment.json").read_text())
    assert settings["experiment"]["control"]["target"] == 5
    done = controlvae(*report.split(), "--examples", "50", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "runs/my_vae/report.html").read_text()
    done = controlvae(*export.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my_vae_export/encoder.pt2").is_file()


def test_the_name_is_written_into_the_file(tmp_path):
    (tmp_path / "models").mkdir()
    path = lab.new(tmp_path / "models" / "faces.py")
    assert path == tmp_path / "models" / "faces.py"
    assert "controlvae train faces.py" in path.read_text()
    assert "my_vae" not in path.read_text()
    assert next_commands(path)[1] == "controlvae report runs/faces --trust-code"


def test_a_file_is_never_overwritten(tmp_path):
    (tmp_path / "mine.py").write_text("precious = 1\n")
    for name in ("mine", "mine.py"):
        with pytest.raises(UserError, match="exists"):
            lab.new(tmp_path / name)
    assert (tmp_path / "mine.py").read_text() == "precious = 1\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-vae", "Python name"),
        ("2vae", "Python name"),
        ("class", "Python name"),
        ("my_vae.txt", "Python name"),
        ("", "Python name"),
        (".", "Python name"),
        (".py", "Python name"),
        ("torch", "hide the module torch"),
        ("random.py", "hide the module random"),
        ("missing/my_vae", "does not exist"),
    ],
)
def test_unusable_names_get_one_line(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        lab.new(name)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_template_reaches_its_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab.new("reaches")
    run = lab.train("reaches.py", device="cpu", progress=False)
    assert run.experiment.control == cv.Auto(8.0)
    kl = run.log["kl"][-20:]
    assert sum(kl) / len(kl) == pytest.approx(8.0, rel=0.05)
    assert run.traverse().axes
