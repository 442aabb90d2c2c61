"""Resuming runs of user-supplied models: bit-equal on a CPU, and clear about what has changed."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from custom_models import ConvVAE, PlainVAE, Rows, RowStream, discs, groups
from torch.utils.data import DataLoader

import controlvae as cv
from controlvae import lab
from controlvae.errors import RunError, UserError
from controlvae.lab.runs.folder import RunFolder

QUIET = {"progress": False, "device": "cpu"}
SETTINGS = {"law": cv.Auto(3.0), "steps": 60, "batch": 16, "log_every": 5, **QUIET}


def stop_at(step):
    """Return a callback that interrupts training as Ctrl-C does."""

    def callback(progress):
        if progress.step >= step:
            signal.raise_signal(signal.SIGINT)

    return callback


def weights(run):
    return run.model.state_dict()


CASES = {
    "arrays": (PlainVAE, groups, {}),
    "images with batch norm, dropout and an average": (
        ConvVAE,
        discs,
        {"ema_weights": 0.9},
    ),
    "transforms": (PlainVAE, lambda: Rows(groups(), noise=0.2), {"likelihood": "bernoulli"}),
    "workers": (PlainVAE, lambda: Rows(groups(), noise=0.2), {"workers": 1}),
    "a stream": (PlainVAE, lambda: RowStream(groups()), {}),
    "a loader with its own sampler": (
        PlainVAE,
        lambda: DataLoader(
            groups(), batch_size=16, sampler=torch.utils.data.RandomSampler(groups(), True, 512)
        ),
        {"batch": None},
    ),
    "optimiser and scheduler": (
        PlainVAE,
        groups,
        {
            "optimiser": torch.optim.AdamW,
            "scheduler": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=61),
        },
    ),
    "validation": (PlainVAE, groups, {"validation": 0.2, "validate_every": 20}),
    "seeds": (PlainVAE, groups, {"seeds": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_run_resumes_as_if_unbroken(name, tmp_path):
    model, data, options = CASES[name]
    settings = {key: value for key, value in {**SETTINGS, **options}.items() if value is not None}
    unbroken = lab.fit(model, data(), run=tmp_path / "unbroken", **settings)
    with pytest.raises(KeyboardInterrupt):
        lab.fit(model, data(), run=tmp_path / "run", callbacks=[stop_at(23)], **settings)
    code = {k: v for k, v in options.items() if k in ("optimiser", "scheduler", "workers")}
    resumed = lab.resume(tmp_path / "run", model, data(), **code, **QUIET)
    pairs = [(unbroken, resumed)] if name != "seeds" else zip(unbroken, resumed, strict=True)
    for one, other in pairs:
        assert other.step == 60
        assert (one.folder.log_file).read_bytes() == (other.folder.log_file).read_bytes()
        for key, value in weights(one).items():
            assert torch.equal(value, weights(other)[key]), key


SCRIPT = """
import sys, torch
sys.path.insert(0, {helpers!r})
from custom_models import ConvVAE, discs
import controlvae as cv
from controlvae import lab
torch.set_num_threads(1)
torch.manual_seed(0)
lab.fit(ConvVAE(), discs(), law=cv.Auto(3.0), steps=400, batch=32, log_every=10,
        run=sys.argv[1], device="cpu", checkpoint_every=0.05, progress=False)
"""


def test_kill_9_loses_nothing(tmp_path):
    """Kill training twice at a moment of its own choosing; the end equals that of an unbroken run."""
    helpers = str(Path(__file__).parents[2] / "helpers")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT.format(helpers=helpers)))
    torch.set_num_threads(1)
    subprocess.run([sys.executable, script, tmp_path / "whole"], check=True)
    process = subprocess.Popen([sys.executable, script, tmp_path / "killed"])
    log = tmp_path / "killed" / "log.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not log.exists() or log.stat().st_size < 2_000):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run = lab.resume(tmp_path / "killed", ConvVAE(), discs(), **QUIET)
    assert run.step == 400
    assert log.read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()
    whole = lab.load_run(tmp_path / "whole", model=ConvVAE(), dataset=discs())
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(run)[name])


def test_a_changed_model_or_changed_data_is_named(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        lab.fit(PlainVAE, groups(), run=tmp_path / "run", callbacks=[stop_at(20)], **SETTINGS)
    with pytest.raises(UserError, match=r"encoder_net.0.weight was \(32, 32\) and is \(8, 32\)"):
        lab.resume(tmp_path / "run", PlainVAE(hidden=8), groups(), **QUIET)
    with pytest.raises(UserError, match="data has changed"):
        lab.resume(tmp_path / "run", PlainVAE(), groups(seed=1), **QUIET)
    assert lab.resume(tmp_path / "run", PlainVAE(), groups(), **QUIET).step == 60


def test_a_folder_without_its_code_shows_what_it_has(tmp_path):
    """Another process has neither model nor data: nothing is imported, the log is readable."""
    lab.fit(PlainVAE, groups(), run=tmp_path / "run", **SETTINGS)
    code = textwrap.dedent(
        f"""
        import warnings
        warnings.simplefilter("ignore")
        from controlvae import lab
        run = lab.load_run({str(tmp_path / "run")!r})
        print(len(run.log), run.log[-1]["step"])
        lab.report(run, {str(tmp_path / "report.html")!r}, progress=False)
        try:
            run.model
        except Exception as error:
            print(error)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert "12 60" in result.stdout, result.stderr
    assert "pass it again" in result.stdout
    assert (tmp_path / "report.html").is_file()


def test_weights_load_without_the_package(tmp_path):
    run = lab.fit(PlainVAE, groups(), run=tmp_path / "run", **SETTINGS)
    from safetensors.torch import load_file

    tensors = load_file(run.folder.checkpoints / "step-0000000060" / "tensors.safetensors")
    model = PlainVAE()
    model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    assert torch.equal(model.encoder_net[0].weight, run.model.encoder_net[0].weight)


def test_data_that_ends_is_named_and_the_run_is_kept(tmp_path):
    batches = iter(groups().split(16))
    with pytest.raises(RunError, match="the data ended before step 33"):
        lab.fit(PlainVAE, batches, run=tmp_path / "run", **SETTINGS)
    assert RunFolder(tmp_path / "run").records()


def test_runs_do_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(discs(32)):
        Image.fromarray((255 * image[0]).byte().numpy()).save(folder / f"{number}.png")
    lab.fit(ConvVAE, "images", run="run", likelihood="bernoulli", **SETTINGS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = lab.load_run(tmp_path / "run", model=ConvVAE())
    assert len(run.examples) == 32
    assert re.search("images", run.examples.source)
