"""`controlvae branch`: new runs from the checkpoints of others, with other settings."""

import json
import shutil
from dataclasses import replace

import pytest
from command import ended_after, within
from tiny import TINY, newest, stopped_run, weights

from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder


def ramp(stop):
    return ["--set", f"control.target=Staircase(2.0, {stop}, 1.0, 50)"]


def test_branch_equals_a_run_with_its_settings_from_the_start(tmp_path):
    """The two ramps are equal up to step 200, after the branch."""
    train = ["train", "shapes2d-quick", *TINY]
    within(*train, *ramp(5.0), "--run", tmp_path / "whole", cwd=tmp_path)
    within(
        *train,
        *ramp(9.0),
        "--set",
        "training.steps=190",
        "--run",
        tmp_path / "beginning",
        cwd=tmp_path,
    )
    settings = ["--set", "control.target.stop=5", "--set", "training.steps=400"]
    done = within("branch", tmp_path / "beginning", tmp_path / "branch", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "at step 190; train it with" in done.stdout
    beginning = (tmp_path / "beginning" / "log.jsonl").read_bytes()
    done = within("resume", tmp_path / "branch", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole, branch = tmp_path / "whole", tmp_path / "branch"
    left, right = weights(whole), weights(branch)
    assert all(left[name].equal(right[name]) for name in left)
    # The parent has an extra line at step 190, where it ended. Every other line is the same.
    lines = [(run / "log.jsonl").read_text().splitlines() for run in (whole, branch)]
    odd = {190, 196}
    common = [[line for line in log if json.loads(line)["step"] not in odd] for log in lines]
    assert common[0] == common[1]
    warnings = [line for line in run_warnings(RunFolder(branch)) if "step 190" in line]
    assert len(warnings) == 1
    assert "control.target.stop" in warnings[0]
    assert (tmp_path / "beginning" / "log.jsonl").read_bytes() == beginning


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return stopped_run(tmp_path_factory.mktemp("runs") / "parent")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.latents=9"], "cannot change model.latents"),
        (["data.images=128"], "cannot change data.images"),
        (["control=Constant(1)"], "from PI to Constant"),
        (["training.validation=32"], "cannot change training.validation"),
        (["training.steps=10"], "training.steps"),
    ],
)
def test_incompatible_settings_are_refused(parent, tmp_path, settings, message):
    words = [
        "branch",
        parent,
        tmp_path / "branch",
        *(word for one in settings for word in ("--set", one)),
    ]
    done = within(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not any(path.name.endswith("branch") for path in tmp_path.iterdir())


def test_seeds_are_branched_at_a_common_step(tmp_path):
    """One seed is a checkpoint ahead, as after a kill. Then one has no checkpoint at all."""
    run, settings = (
        tmp_path / "seeds",
        ["--set", "training.steps=60", "--set", "training.log_every=20"],
    )
    done = within(
        "train", "shapes2d-quick", *TINY, *settings, "--seeds", "2", "--run", run, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    behind, ahead = (
        sorted((run / f"seed-{seed}" / "checkpoint").glob("step-*")) for seed in (1, 2)
    )
    shutil.rmtree(behind[-1])
    longer = ["--set", "training.steps=80"]
    done = within("branch", run, tmp_path / "branch", *longer, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert within("resume", tmp_path / "branch", "--device", "cpu", cwd=tmp_path).returncode == 0
    assert len(ahead) == 2
    assert {newest(tmp_path / "branch" / f"seed-{seed}").name for seed in (1, 2)} == {
        "step-0000000080"
    }
    shutil.rmtree(ahead[-1])
    for one, step in ((behind, 50), (ahead, 70)):  # trained separately since
        checkpoint.save(one[0].parent, replace(checkpoint.load_latest(one[0].parent)[0], step=step))
    done = within("branch", run, tmp_path / "none", *longer, cwd=tmp_path)
    assert done.returncode == 2
    assert "at steps 50, 70" in done.stderr
    shutil.rmtree(run / "seed-2" / "checkpoint")
    done = within("branch", run, tmp_path / "none", *longer, cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "none").exists()
    assert "is inside" in within("branch", run, run / "more", *longer, cwd=tmp_path).stderr


def test_a_full_disk_leaves_no_branch(parent, tmp_path, monkeypatch):
    shutil.copytree(parent, tmp_path / "seeds" / "one")
    shutil.copytree(parent, tmp_path / "seeds" / "two")
    save, calls = checkpoint.save, []

    def full(folder, saved):
        calls.append(folder)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save(folder, saved)

    monkeypatch.setattr(checkpoint, "save", full)
    done = within(
        "branch", tmp_path / "seeds", tmp_path / "new", "--set", "training.steps=900", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert not list((tmp_path / "new").rglob("*.json"))


def test_branch_keeps_best_weights_and_a_moved_target(tmp_path):
    run = tmp_path / "run"
    validation = ["--set", "training.validation=32", "--set", "training.validate_every=21"]
    with ended_after(100):
        done = within("train", "shapes2d-quick", *TINY, *validation, "--run", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert within("steer", run, "5", cwd=tmp_path).returncode == 0
    assert within("resume", run, "--device", "cpu", cwd=tmp_path).returncode == 0
    best = sorted((run / "best").glob("step-*"))[-1].name
    further = ["--set", "training.steps=420"]
    for name, setting, target in (
        ("same", "control.ki=0.002", 5.0),
        ("other", "control.target=7", 7.0),
    ):
        child = tmp_path / name
        done = within("branch", run, child, *further, "--set", setting, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert [path.name for path in (child / "best").iterdir()] == [best]
        assert within("resume", child, "--device", "cpu", cwd=tmp_path).returncode == 0
        assert RunFolder(child).last_record()["target"] == target
        assert any("moved by hand" in line for line in run_warnings(RunFolder(child))) == (
            target == 5.0
        )
