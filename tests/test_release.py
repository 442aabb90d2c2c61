"""The wheel and the source archive: what is in them, and that they work in an empty environment."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE_ONLY = """
import sys, torch
import controlvae as cv
from controlvae.metrics import mig

control = cv.Controller(cv.Auto(18.0))
beta = control.step(torch.tensor(20.0))
assert beta.ndim == 0 and float(beta) > 0, beta

health = cv.Health()
mean, log_variance = torch.randn(64, 4), torch.zeros(64, 4)
kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
health.update(mean, log_variance, kl=kl)
assert str(health.read())

factors = torch.cartesian_prod(torch.arange(4), torch.arange(5)).repeat(50, 1)
assert mig(factors.double(), factors, bins=20).score > 0.9
unwanted = {"safetensors", "typer", "rich", "matplotlib", "PIL"} & set(sys.modules)
assert not unwanted, unwanted
"""


def run(*words, check=True, **options):
    """Run a command outside the checkout's import path and return what it printed."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env=env, **options
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Build the wheel and the source archive once."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    return out


@pytest.fixture(scope="module")
def environment(archives, tmp_path_factory):
    """Install the wheel with its required dependencies, torch and numpy, into an empty environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    (wheel,) = archives.glob("*.whl")
    pip = [
        folder / "bin" / "pip",
        "install",
        "--quiet",
        "--no-compile",
        "-c",
        ROOT / "constraints.txt",
    ]
    run(*pip, wheel, timeout=600)
    return folder / "bin", pip, wheel


def test_archives_pass_twine_check(archives):
    done = run(sys.executable, "-m", "twine", "check", "--strict", *archives.iterdir())
    assert done.stdout.count("PASSED") == 2


def test_wheel_has_types_licences_and_page(archives):
    (wheel,) = archives.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "controlvae/py.typed" in names
    assert "controlvae/lab/dashboard/page/index.html" in names
    assert "controlvae/lab/templates/my_vae.py" in names
    assert sum("licenses/" in name for name in names) == 2
    assert not any(name.startswith(("tests/", "docs/", "results/")) for name in names)


def test_source_archive_has_what_the_tests_need(archives):
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"Makefile", "constraints.txt", "CITATION.cff", "tests/test_release.py"} <= names


@pytest.mark.skipif(os.name != "posix", reason="looks for bin/ of a POSIX environment")
def test_wheel_works_in_an_empty_environment(environment, tmp_path):
    folder, pip, wheel = environment
    run(folder / "python", "-c", CORE_ONLY, cwd=tmp_path)
    refused = run(folder / "controlvae", "train", "shapes2d-quick", check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'controlvae[lab]'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1

    run(*pip, f"{wheel}[lab]", timeout=600)
    small = ["--set", "training.steps=30", "--set", "data.images=256", "--device", "cpu"]
    run(
        folder / "controlvae",
        "train",
        "shapes2d-quick",
        *small,
        "--run",
        "runs/first",
        cwd=tmp_path,
    )
    run(folder / "controlvae", "report", "runs/first", "--out", "report.html", cwd=tmp_path)
    assert "<svg" in (tmp_path / "report.html").read_text()
