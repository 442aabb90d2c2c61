"""Reuse of metrics, and interruption of several evaluations."""

import pytest
import torch
from command import within

from controlvae.errors import Interrupted
from controlvae.lab.api import evaluate as evaluation
from controlvae.lab.config import override, preset
from controlvae.lab.runs.checkpoint import Checkpoint, save
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training.display import ConsoleDisplay


def test_ctrl_c_while_evaluating_says_how_much_is_done(tmp_path, monkeypatch, capsys):
    folders = [RunFolder(tmp_path / str(seed)) for seed in (1, 2)]
    for seed, folder in enumerate(folders, start=1):
        folder.create(override(preset("shapes2d-quick"), [f"training.seed={seed}"]), "")
        save(folder.checkpoints, Checkpoint(1, {"a": torch.zeros(1)}, {}))
    seen = []

    def interrupted(folder, *_, position, **__):
        seen.append((folder.path.name, position))
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate_run", interrupted)
    with pytest.raises(Interrupted):
        evaluation.evaluate_pending(folders, torch.device("cpu"), None, ConsoleDisplay())
    assert seen == [("1", "1 of 2"), ("2", "2 of 2")]
    assert "stopped while evaluating, 1 of 2 done" in capsys.readouterr().out


def test_thorough_metrics_are_reused_without_an_unused_bound(tmp_path):
    folder = RunFolder(tmp_path / "shapes2d-control-16" / "seed-1")
    sets = [
        word
        for one in ("training.steps=1", "training.batch=2", "data.images=64")
        for word in ("--set", one)
    ]
    assert (
        within("train", "shapes2d-control-16", *sets, "--run", folder.path, cwd=tmp_path).returncode
        == 0
    )
    measured = ("evaluate", folder.path, "--device", "cpu", "--thorough", "--iwae", 0)
    assert within(*measured, cwd=tmp_path).returncode == 0
    before = folder.metrics_file.read_bytes()
    tabulated = within(
        "reproduce",
        "ablation-step",
        "--runs",
        tmp_path,
        "--no-train",
        "--device",
        "cpu",
        cwd=tmp_path,
    )
    assert tabulated.returncode == 0, tabulated.stderr
    assert folder.metrics_file.read_bytes() == before
    evaluation.evaluate_run(folder, torch.device("cpu"), None, ConsoleDisplay())
    assert "iwae" in folder.metrics()
    assert folder.metrics()["thorough"]
