"""`controlvae branch`: a new run from another's checkpoint, under settings of its own."""

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


def test_a_branch_ends_as_if_its_settings_had_been_there_from_the_beginning(tmp_path):
    """Two ramps that part at step 200, after the branch: up to there they are the same experiment."""
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
    # The beginning ended with a line of its own at step 190; every other line is the same.
    lines = [(run / "log.jsonl").read_text().splitlines() for run in (whole, branch)]
    odd = {190, 196}
    kept = [[line for line in log if json.loads(line)["step"] not in odd] for log in lines]
    assert kept[0] == kept[1]
    said = [line for line in run_warnings(RunFolder(branch)) if "up to step 190 it is" in line]
    assert len(said) == 1
    assert said[0].endswith("which had another control.target.stop")
    assert (tmp_path / "beginning" / "log.jsonl").read_bytes() == beginning


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return stopped_run(tmp_path_factory.mktemp("runs") / "parent")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.latents=9"], "model.latents cannot change"),
        (["data.images=128"], "data.images cannot change"),
        (["control=Constant(1)"], "PI cannot become Constant"),
        (["training.validation=32"], "training.validation cannot change"),
        (["training.steps=10"], "say how far to go"),
    ],
)
def test_a_branch_that_its_checkpoint_cannot_serve_is_refused(parent, tmp_path, settings, message):
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


def test_branches_of_seeds_stand_together_or_are_not_made(tmp_path):
    """One seed is a checkpoint ahead, as a kill between two saves leaves it; then one has none at all."""
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
    for one, step in (
        (behind, 50),
        (ahead, 70),
    ):  # trained on by themselves, from what they have in common
        checkpoint.save(one[0].parent, replace(checkpoint.load(one[0].parent)[0], step=step))
    done = within("branch", run, tmp_path / "none", *longer, cwd=tmp_path)
    assert (
        done.returncode,
        "stand apart, at steps 50, 70: branch them one by one" in done.stderr,
    ) == (2, True)
    shutil.rmtree(run / "seed-2" / "checkpoint")
    done = within("branch", run, tmp_path / "none", *longer, cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "none").exists()
    assert "lies within" in within("branch", run, run / "more", *longer, cwd=tmp_path).stderr


def test_of_branches_that_the_disk_does_not_take_none_is_left(parent, tmp_path, monkeypatch):
    shutil.copytree(parent, tmp_path / "seeds" / "one")
    shutil.copytree(parent, tmp_path / "seeds" / "two")
    save, taken = checkpoint.save, []

    def full(folder, saved):
        taken.append(folder)
        if len(taken) == 2:
            raise OSError(28, "No space left on device")
        save(folder, saved)

    monkeypatch.setattr(checkpoint, "save", full)
    done = within(
        "branch", tmp_path / "seeds", tmp_path / "new", "--set", "training.steps=900", cwd=tmp_path
    )
    assert (
        done.returncode,
        "No space left on device; make room and branch again" in done.stderr,
    ) == (1, True)
    assert not list((tmp_path / "new").rglob("*.json"))


def test_a_branch_keeps_the_best_weights_and_a_target_moved_by_hand_until_it_is_given_another(
    tmp_path,
):
    run, looks = (
        tmp_path / "run",
        ["--set", "training.validation=32", "--set", "training.validate_every=21"],
    )
    with ended_after(100):
        done = within("train", "shapes2d-quick", *TINY, *looks, "--run", run, cwd=tmp_path)
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
