"""Scheduling of several runs in one folder, grouped by what one engine can train."""

import os
import signal
from types import SimpleNamespace

import pytest
from command import ended_after, within
from tiny import TINY, assert_same_run, newest, sets

from controlvae.lab.config import override, preset
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.training import loop, runner, scheduler

SHORT = ["shapes2d-quick", *TINY, *sets("training.steps=60")]
WIDER = sets("model.hidden=24")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three seeds and a model of other settings, all uninterrupted."""
    home = tmp_path_factory.mktemp("runs") / "three"
    assert within("train", *SHORT, "--seeds", 3, "--run", home, cwd=home.parent).returncode == 0
    assert within("train", *SHORT, *WIDER, "--run", home / "wider", cwd=home.parent).returncode == 0
    return home


@pytest.fixture
def stopped(tmp_path):
    """The same runs, stopped at different steps."""
    home = tmp_path / "three"
    for step, words in (
        (20, [*SHORT, "--seeds", 2, "--run", home]),
        (40, [*SHORT, "--set", "training.seed=3", "--run", home / "seed-3"]),
        (1, [*SHORT, *WIDER, "--run", home / "wider"]),
    ):
        with ended_after(step):
            assert within("train", *words, cwd=tmp_path).returncode == 0
    return home


def test_runs_at_different_steps_resume_group_by_group(three, stopped):
    steps = [int(newest(stopped / name).name[5:]) for name in ("seed-1", "seed-3", "wider")]
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if " of 3: " in line]
    groups = ("2 runs side by side", "1 run", "1 run")
    assert said == [
        f"controlvae: {place} of 3: shapes2d-quick: {group}, from step {step}"
        for place, (group, step) in enumerate(zip(groups, steps, strict=True), start=1)
    ]
    for name in ("seed-1", "seed-2", "seed-3", "wider"):
        assert_same_run(three / name, stopped / name)
    assert "has ended" in within("resume", stopped, cwd=stopped).stdout


@pytest.mark.parametrize(("step", "groups"), [(20, 1), (1, 2)])
def test_seeds_killed_between_saves_resume_at_a_common_step(
    three, tmp_path, monkeypatch, step, groups
):
    home, save = tmp_path / "seeds", checkpoint.save

    def killed(folder, saved, *keep):
        if saved.step >= step and folder.parent.name == "seed-2":
            raise KeyboardInterrupt  # like a kill: no event is written
        return save(folder, saved, *keep)

    monkeypatch.setattr(loop._CheckpointTimer, "due", lambda _: True)
    monkeypatch.setattr(checkpoint, "save", killed)
    assert within("train", *SHORT, "--seeds", 2, "--run", home, cwd=tmp_path).returncode == 130
    monkeypatch.undo()
    ahead, behind = (
        checkpoint.latest_step(home / f"seed-{seed}" / "checkpoint") for seed in (1, 2)
    )
    assert ahead > (behind or 0)
    done = within("resume", home, "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stdout.count("finished at step 60")) == (0, groups), done.stderr
    for seed in ("seed-1", "seed-2"):
        assert_same_run(three / seed, home / seed)
        resumed = [
            event for event in RunFolder(home / seed).events() if event["event"] == "resumed"
        ]
        assert [event["step"] for event in resumed] == (
            [behind] if groups == 1 else [1] if seed == "seed-1" else []
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_in_one_group_stops_all(three, stopped, monkeypatch, number):
    def interrupted(*runs, **options):
        for progress in loop.train_runs(*runs, **options):
            os.kill(os.getpid(), number)
            yield progress

    monkeypatch.setattr(runner, "train_runs", interrupted)
    later = [(stopped / name / "events.jsonl").read_bytes() for name in ("seed-3", "wider")]
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 130, done.stderr
    assert f"of 60; resume with: controlvae resume {stopped}\n" in done.stdout
    assert [(stopped / name / "events.jsonl").read_bytes() for name in ("seed-3", "wider")] == later
    monkeypatch.undo()
    assert within("resume", stopped, "--device", "cpu", cwd=stopped).returncode == 0
    for name in ("seed-1", "seed-2", "seed-3", "wider"):
        assert_same_run(three / name, stopped / name)


def test_groups_share_the_time_limit(stopped, monkeypatch):
    limits, clock = [], iter([0, 0, 2400, 3600])  # seconds: at the start, and before each group

    def limited(*runs, **options):
        limits.append(options["time_limit"])
        return loop.train_runs(*runs, **options)

    monkeypatch.setattr(runner, "train_runs", limited)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    done = within("resume", stopped, "--time-limit", "1h", "--device", "cpu", cwd=stopped)
    assert (done.returncode, limits) == (0, [3600, 1200]), done.stderr
    assert "no time left for 1 of 3 groups" in done.stdout
    assert f"resume with: controlvae resume {stopped}\n" in done.stdout
    assert [
        RunFolder(stopped / name).has_ended() for name in ("seed-1", "seed-2", "seed-3", "wider")
    ] == [True] * 3 + [False]


@pytest.mark.parametrize(("rates", "status"), [(("1e18", "1e-3"), 0), (("1e18", "1e18"), 1)])
def test_diverged_group_does_not_stop_the_others(tmp_path, rates, status):
    settings = [word for word in SHORT if "=" in word]
    for batch, rate in zip((8, 16), rates, strict=True):
        one = override(
            preset("shapes2d-quick"),
            [*settings, f"training.batch={batch}", f"optimiser.rate={rate}"],
        )
        RunFolder(tmp_path / f"batch {batch}").create(one, "")
    done = within("resume", tmp_path, "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("NaN or infinite")) == (status, 1 + status), (
        done.stderr
    )
    assert "Traceback" not in done.stderr
    assert RunFolder(tmp_path / "batch 16").events()[-1]["event"] == (
        "diverged" if status else "finished"
    )


def test_linked_runs_are_found_once(three, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "seeds").symlink_to(three)
    (home / "again").symlink_to(three / "seed-1")
    (home / "round").symlink_to(home)
    found = [folder.path.relative_to(home).as_posix() for folder in find_runs(home)]
    assert found == ["again", "seeds/seed-2", "seeds/seed-3", "seeds/wider"]


def test_unreadable_run_does_not_stop_the_others(three, stopped):
    for file in (stopped / "seed-3" / "checkpoint").rglob("tensors.safetensors"):
        file.write_bytes(b"")
    (stopped / "wider" / "experiment.json").write_text("{")
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 2
    assert all(
        f"controlvae: {words}" in done.stderr
        for words in ("no intact checkpoint in", f"{stopped / 'wider'}")
    )
    for name in ("seed-1", "seed-2"):
        assert_same_run(three / name, stopped / name)


def test_run_stopped_ahead_of_others_is_not_set_back(three, tmp_path):
    home = tmp_path / "seeds"
    with ended_after(20):
        assert within("train", *SHORT, "--seeds", 2, "--run", home, cwd=tmp_path).returncode == 0
    behind = int(newest(home / "seed-2").name[5:])
    with ended_after(behind + 1):
        assert within("resume", home / "seed-1", "--device", "cpu", cwd=tmp_path).returncode == 0
    ahead = int(newest(home / "seed-1").name[5:])
    # It still has the step of the other run, to which it could return.
    assert (home / "seed-1" / "checkpoint" / f"step-{behind:010d}").is_dir()
    done = within("resume", home, "--device", "cpu", cwd=tmp_path)
    assert [f"from step {step}" in done.stderr for step in (behind, ahead)] == [True, True], (
        done.stderr
    )
    for name in ("seed-1", "seed-2"):
        assert_same_run(three / name, home / name)


def test_runs_trained_meanwhile_are_grouped_again(three, stopped, monkeypatch):
    resume = runner.resume_runs

    def train_meanwhile(folders, *arguments):
        monkeypatch.setattr(runner, "resume_runs", resume)
        with ended_after(50):
            assert (
                within("resume", stopped / "seed-3", "--device", "cpu", cwd=stopped).returncode == 0
            )
        resume(folders, *arguments)

    monkeypatch.setattr(runner, "resume_runs", train_meanwhile)
    done = within("resume", stopped, "--device", "cpu", cwd=stopped)
    assert done.returncode == 0, done.stderr
    for name in ("seed-1", "seed-2", "seed-3", "wider"):
        assert_same_run(three / name, stopped / name)


def test_runs_without_data_are_kept_and_others_train(tmp_path):
    for batch in (4, 8):
        one = override(
            preset("text-quick"), ['data=TextFile("gone.txt")', f"training.batch={batch}"]
        )
        RunFolder(tmp_path / str(batch)).create(one, "")
    settings = [word for word in SHORT if "=" in word]
    RunFolder(tmp_path / "well").create(override(preset("shapes2d-quick"), settings), "")
    done = within("resume", tmp_path, "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("gone.txt")) == (2, 2)
    assert all((tmp_path / batch / "experiment.json").is_file() for batch in ("4", "8"))
    assert RunFolder(tmp_path / "well").has_ended()
