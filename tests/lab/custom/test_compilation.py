"""Compiled models: the same numbers, and training without compilation where it fails."""

import dataclasses

import pytest
import torch
from custom_models import ConvVAE, PlainVAE, discs, groups

import controlvae as cv
from controlvae import lab
from controlvae.lab.custom.compilation import saves_time

SETTINGS = {"law": cv.Auto(3.0), "steps": 12, "batch": 16, "log_every": 4, "device": "cpu"}


def fit(model, data, path, **options):
    torch.manual_seed(0)
    return lab.fit(model, data, run=path, **{"progress": False, **SETTINGS, **options})


def test_a_compiled_model_has_the_same_losses(tmp_path):
    plain = fit(ConvVAE, discs(), tmp_path / "plain")
    compiled = fit(ConvVAE, discs(), tmp_path / "compiled", compile=True)
    for column in ("kl", "reconstruction", "beta"):
        assert compiled.log[column] == pytest.approx(plain.log[column], rel=1e-4)


def test_training_continues_if_compilation_fails(tmp_path, monkeypatch, capsys):
    def fail(function, **options):
        def compiled(*arguments):
            raise RuntimeError("no compiler")

        return compiled

    plain = fit(PlainVAE, groups(), tmp_path / "plain")
    monkeypatch.setattr(torch, "compile", fail)
    run = fit(PlainVAE, groups(), tmp_path / "failed", compile=True, progress=True)
    assert run.log["kl"] == plain.log["kl"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "compilation" in line]
    assert len(lines) == 1
    assert "no compiler" in lines[0]


def test_an_error_of_the_model_is_not_taken_for_one_of_the_compiler(tmp_path):
    class Broken(PlainVAE):
        def decode(self, z):
            if self.training and z.shape[0] == 16 and z.requires_grad:
                raise RuntimeError("broken decoder")
            return super().decode(z)

    with pytest.raises((RuntimeError, cv.errors.RunError), match="broken decoder"):
        fit(Broken, groups(), tmp_path / "broken", compile=True)


def test_only_long_runs_of_one_model_on_a_gpu_are_compiled_unasked():
    experiment = lab.define(PlainVAE, groups(), law=cv.Auto(3.0), steps=100_000).experiment(
        torch.device("cpu")
    )
    short = dataclasses.replace(
        experiment, training=dataclasses.replace(experiment.training, steps=20_000)
    )
    assert saves_time([experiment], torch.device("cuda"))
    assert not saves_time([experiment], torch.device("cpu"))
    assert not saves_time([short], torch.device("cuda"))
    assert not saves_time([experiment] * 2, torch.device("cuda"))
