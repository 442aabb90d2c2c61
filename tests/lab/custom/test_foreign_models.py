"""Models of other libraries and of users: trained, killed, resumed, measured and explored."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign_models import FASHION, FOREIGN, GRUTextVAE, padded_sentences

import controlvae as cv
from controlvae import lab
from controlvae.errors import UserError

HELPERS = Path(__file__).parents[2] / "helpers"
STEPS = 60
# The parent imports once; each child trains one model, saves often and is killed by its callback.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from unittest import mock
sys.path[:0] = [HELPERS, TESTS]
import torch
import test_foreign_models
from controlvae.lab.training import loop

def kill(progress):
    if progress.step >= 30:
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
for name in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        with mock.patch.object(loop._CheckpointTimer, "due", return_value=True):
            test_foreign_models.fit_whole(name, Path(sys.argv[1]) / name, callbacks=[kill])
        os._exit(0)
    os.waitpid(child, 0)
"""


def options_of(name):
    return {} if name == "gru-text" else {"batch": 16}


def fit_whole(name, path, **options):
    model, data, _ = FOREIGN[name]
    torch.manual_seed(0)
    settings = {"law": cv.Auto(3.0), "steps": STEPS, "log_every": 2, **options_of(name), **options}
    return lab.fit(model(), data(), run=path, device="cpu", progress=False, **settings)


def is_installed(name):
    library = name.partition("-")[0]
    return library not in ("diffusers", "pythae") or importlib.util.find_spec(library) is not None


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return the folder of runs that SIGKILL ended, by the model's name."""
    folder = tmp_path_factory.mktemp("killed")
    script = folder / "train.py"
    places = f"HELPERS, TESTS = {str(HELPERS)!r}, {str(Path(__file__).parent)!r}\n"
    script.write_text(places + SCRIPT)
    names = [name for name in FOREIGN if is_installed(name)]
    subprocess.run([sys.executable, script, folder, *names], check=True)
    return folder


@pytest.mark.parametrize("name", FOREIGN)
def test_it_trains_survives_a_kill_reports_and_is_explored(name, killed, tmp_path):
    if not is_installed(name):
        pytest.skip("the library is not installed")
    model, data, decodes = FOREIGN[name]
    whole = fit_whole(name, tmp_path / "whole")
    assert whole.step == STEPS
    assert np.isfinite(whole.log["kl"]).all()
    saved = [int(path.name[5:]) for path in (killed / name / "checkpoint").glob("step-*")]
    assert 0 < max(saved) < STEPS
    torch.manual_seed(1)
    resumed = lab.resume(killed / name, model(), data(), device="cpu", progress=False)
    assert resumed.folder.log_file.read_bytes() == whole.folder.log_file.read_bytes()
    state = resumed.model.state_dict()
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, state[key]), key
    metrics = resumed.evaluate(iwae=0, progress=False)
    assert metrics["elbo"] == pytest.approx(-(metrics["reconstruction"] + metrics["kl"]))
    assert "<svg" in resumed.report(progress=False).read_text()
    if decodes:
        assert resumed.sample(2).shape[1:] == resumed.examples.shape
        assert resumed.traverse().axes
    else:
        with pytest.raises(UserError, match=r"encode\(x\) and decode\(z\)"):
            resumed.sample(2)


@pytest.mark.skipif(not FASHION.is_file(), reason="Fashion-MNIST is not installed")
def test_a_resnet_reaches_its_target_on_fashion_mnist(tmp_path):
    model, data, _ = FOREIGN["resnet"]
    torch.manual_seed(0)
    run = lab.fit(
        model(),
        data(),
        law=cv.Auto(8.0),
        steps=500,
        batch=32,
        likelihood="bernoulli",
        run=tmp_path / "run",
        device="cpu",
        progress=False,
    )
    assert np.mean(run.log["kl"][-40:]) == pytest.approx(8.0, rel=0.1)
    assert run.reconstruct(data()[:3]).shape == (3, 1, 28, 28)


def test_tied_weights_stay_tied_after_resuming(tmp_path):
    run = fit_whole("gru-text", tmp_path / "run")
    assert run.model.output.weight is run.model.embedding.weight
    loaded = lab.load_run(run.folder.path, model=GRUTextVAE(), dataset=padded_sentences())
    assert loaded.model.output.weight is loaded.model.embedding.weight
    assert torch.equal(loaded.model.embedding.weight, run.model.embedding.weight)
