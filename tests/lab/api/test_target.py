"""Recommended set points, through the command line."""

import io
import math
import re
import statistics

import numpy as np
import pytest
from command import within
from PIL import Image
from tiny import sets

from controlvae.lab.cli import options
from controlvae.lab.runs.folder import RunFolder


def test_corrected_command_reuses_folders_that_never_started(tmp_path):
    """Corrupt images are found after the folders are created. Skipping them must then work."""
    (tmp_path / "photos").mkdir()
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "torn.png").write_bytes(b"not an image")
    words = ["target", "images", "--steps", "20", "--device", "cpu", "--run", "there"]
    words += sets(
        "data.path=photos",
        "data.size=16",
        "model.channels=4,4",
        "training.batch=4",
        "training.validation=0.15",
        "training.log_every=5",
        "training.validate_every=0",
        "objective.likelihood=squared-error",
    )
    refused = within(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "torn.png" in refused.stderr
    assert list((tmp_path / "there").iterdir()) == []
    done = within(*words, *sets("data.unreadable=skip"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torn.png" in done.stderr
    assert "22 examples of 3x16x16, 19 for training and 3 for validation" in done.stderr
    assert "controlvae sweep images --set data.path=photos" in done.stdout


def test_target_recommends_a_reachable_set_point(tmp_path):
    words = ["target", "shapes2d-quick", "--run", tmp_path, "--device", "cpu"]
    words += sets("data.images=500", "training.batch=16", "training.log_every=200")
    done = within(*words, "--steps", "200", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    logged = [record["kl"] for record in RunFolder(tmp_path / "beta-1" / "seed-1").records()]
    kl, half = statistics.fmean(logged[-2:]), statistics.fmean(logged[8:10])
    assert len(logged) == 20
    assert "after 200 steps, nats per example, means over the last 20" in done.stdout
    assert f"plain VAE                β 1      KL {kl:9.2f}" in done.stdout
    assert f"still rising, from {half:.1f} to {kl:.1f} nats" in done.stdout
    assert "--steps 800" in done.stdout
    refused = within(*words, "--steps", "800", cwd=tmp_path)
    assert (refused.returncode, "choose another --run" in refused.stderr) == (2, True)
    assert re.search(r"at the lower bound +β 0 +KL", done.stdout)
    command = r"controlvae train shapes2d-quick --set data.images=500 .*--set control.target=\d"
    assert re.search(command, done.stdout)
    for name, reason in (
        ("shapes2d-factor", "controls tc"),
        ("shapes2d-control-16", "never falls below 1"),
    ):
        refused = within("target", name, "--run", tmp_path / "no", cwd=tmp_path)
        assert refused.returncode == 2
        assert reason in refused.stderr


def small_target(path, *words):
    settings = sets("data.images=500", "training.batch=16", "training.log_every=20")
    settings += ["--steps", "200", "--device", "cpu", "--run", path / "runs"]
    return ["target", "shapes2d-quick", *settings, *words]


def test_target_says_what_it_costs_for_each_purpose(tmp_path):
    """A second purpose reads the same runs, so its numbers are those of the first."""
    done = {
        name: within(*small_target(tmp_path, "--for", name), cwd=tmp_path)
        for name in ("reconstruction", "elbo", "disentangling", "no-collapse", "rate")
    }
    assert all(one.returncode == 0 for one in done.values()), done["reconstruction"].stderr
    records = RunFolder(tmp_path / "runs" / "beta-1" / "seed-1").records()
    kl = statistics.fmean(record["kl"] for record in records[-2:])
    latents = sum(nats >= 0.01 for nats in records[-1]["kl_per_latent"])
    chosen, costs = {}, {}
    for name, one in done.items():
        chosen[name] = float(re.search(r"set point: ([\d.]+) nats", one.stdout)[1])
        costs[name] = float(re.search(r"cost in ELBO: ([\d.]+) nats", one.stdout)[1])
        assert f"(--for {name})" in one.stdout
        assert "reason: " in one.stdout
    d = 0.8 * (2 + 2 * math.sqrt(2 * kl + 1))
    assert chosen["reconstruction"] == pytest.approx(kl + d, rel=0.01)
    expected = latents / 2 * (2 * d / latents - 1 + math.exp(-2 * d / latents))
    assert costs["reconstruction"] == pytest.approx(expected, rel=0.01)
    for free in ("elbo", "rate", "no-collapse"):
        assert (chosen[free], costs[free]) == (pytest.approx(kl, rel=0.01), 0)
    assert "'control=Constant(1)'" in done["elbo"].stdout
    assert "beta_min=1, beta_max=inf)'" in done["disentangling"].stdout
    assert costs["disentangling"] > 0
    wrong = within(*small_target(tmp_path, "--for", "fun"), cwd=tmp_path)
    assert wrong.returncode == 2
    assert "no-collapse, disentangling, rate, elbo, got 'fun'" in wrong.stderr


def test_the_purpose_is_asked_only_in_a_terminal(monkeypatch):
    choices = {"one": "the first", "two": "the second"}
    asked = []
    monkeypatch.setattr(options.typer, "prompt", lambda *_, **__: asked.append(1) or answer)
    monkeypatch.setattr(options.sys, "stdin", io.StringIO())
    assert options.ask("Which?", choices) == "one"
    assert asked == []
    monkeypatch.setattr(options.sys.stdin, "isatty", lambda: True, raising=False)
    for answer, expected in (("2", "two"), ("one", "one"), ("else", "else")):  # noqa: B007
        assert options.ask("Which?", choices) == expected
    assert len(asked) == 3
