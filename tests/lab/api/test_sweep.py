"""Sweeps over settings, through the command line."""

import csv
import statistics

import pytest
from command import ended_after, within
from tiny import sets

from controlvae.lab.config.overrides import split_values


def test_sweep_resumes_and_compares_with_the_plain_vae(tmp_path):
    words = ["sweep", "shapes2d-quick", "--vary", "control.target=6,12", "--seeds", "2", "--vae"]
    words += sets("training.steps=300", "data.images=500", "training.batch=16")
    words += sets("model.channels=(8,8,8)", "model.hidden=32")
    words += ["--run", tmp_path, "--device", "cpu"]
    with ended_after(20):
        stopped = within(*words, cwd=tmp_path)
    assert stopped.returncode == 0
    # The progress line is about the first model with a target.
    assert "/6.00  β" in stopped.stderr
    assert "x6 models, numbers of shapes2d-quick (target=6)" in stopped.stderr
    assert "resume with: the same command" in stopped.stdout
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert [row["setting"] for row in rows] == ["plain VAE", "target=6", "target=12"]
    assert float(rows[1]["kl mean"]) < float(rows[2]["kl mean"])
    assert len(list(tmp_path.rglob("experiment.json"))) == 6
    assert (tmp_path / "sweep.png").stat().st_size > 5_000
    pairs = [
        pair
        for pair in csv.DictReader((tmp_path / "theorem.csv").open())
        if pair["setting"] == "target=12"
    ]
    gained = {
        name: statistics.fmean(float(pair[name]) for pair in pairs)
        for name in ("d", "gain in ELBO")
    }
    difference = lambda name: float(rows[2][f"{name} mean"]) - float(rows[0][f"{name} mean"])  # noqa: E731
    assert [pair["seed"] for pair in pairs] == ["1", "2"]
    assert (gained["d"], gained["gain in ELBO"]) == pytest.approx(
        (difference("kl"), difference("elbo")), abs=1e-3
    )
    assert (
        within(*words[:2], "--vary", "control.target", "--run", tmp_path, cwd=tmp_path).returncode
        == 2
    )


def test_values_of_a_sweep_may_contain_dots_and_commas():
    assert split_values("control.target=14.5,16") == ["control.target=14.5", "control.target=16"]
    assert split_values('data=Images("a,b", size=8), PI(6, ki=0.1)') == [
        'data=Images("a,b", size=8)',
        "data=PI(6, ki=0.1)",
    ]
