"""Several runs in one folder: found, grouped by what one engine can train, and trained group after group."""

import os
import signal
from types import SimpleNamespace

import pytest
from command import ended_after, within
from tiny import TINY, assert_same_run, newest

from controlvae.lab.config import override, preset
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.training import loop, runner, scheduler

SHORT, WIDER = ["shapes2d-quick", *TINY, "--set", "training.steps=60"], ["--set", "model.hidden=24"]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three seeds and a model of other settings that nothing happened to."""
    home = tmp_path_factory.mktemp("runs") / "three"
    assert within("train", *SHORT, "--seeds", 3, "--run", home, cwd=home.parent).returncode == 0
    assert within("train", *SHORT, *WIDER, "--run", home / "wider", cwd=home.parent).returncode == 0
    return home


@pytest.fixture
def apart(tmp_path):
    """The same, stopped: two seeds at one step, the third at a later one, the other model at its first."""
    home = tmp_path / "three"
    for step, words in (
        (20, [*SHORT, "--seeds", 2, "--run", home]),
        (40, [*SHORT, "--set", "training.seed=3", "--run", home / "seed-3"]),
        (1, [*SHORT, *WIDER, "--run", home / "wider"]),
    ):
        with ended_after(step):
            assert within("train", *words, cwd=tmp_path).returncode == 0
    return home


def test_runs_that_stand_apart_go_on_group_by_group_and_end_the_same(three, apart):
    steps = [int(newest(apart / name).name[5:]) for name in ("seed-1", "seed-3", "wider")]
    done = within("resume", apart, "--device", "cpu", cwd=apart)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if " of 3: " in line]
    groups = ("2 runs side by side", "1 run", "1 run")
    assert said == [
        f"controlvae: {place} of 3: shapes2d-quick: {group}, from step {step}"
        for place, (group, step) in enumerate(zip(groups, steps, strict=True), start=1)
    ]
    for name in ("seed-1", "seed-2", "seed-3", "wider"):
        assert_same_run(three / name, apart / name)
    assert "has ended" in within("resume", apart, cwd=apart).stdout


@pytest.mark.parametrize(("step", "groups"), [(20, 1), (1, 2)])
def test_seeds_killed_between_two_saves_go_on_together_where_they_have_a_step_in_common(
    three, tmp_path, monkeypatch, step, groups
):
    home, save = tmp_path / "seeds", checkpoint.save

    def killed(folder, saved):
        if saved.step >= step and folder.parent.name == "seed-2":
            raise KeyboardInterrupt  # at once: nothing is put on record
        return save(folder, saved)

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
def test_a_stop_in_one_group_is_one_of_all_and_they_end_the_same(three, apart, monkeypatch, number):
    def interrupted(*runs, **how):
        for progress in loop.train_runs(*runs, **how):
            os.kill(os.getpid(), number)
            yield progress

    monkeypatch.setattr(runner, "train_runs", interrupted)
    later = [(apart / name / "events.jsonl").read_bytes() for name in ("seed-3", "wider")]
    done = within("resume", apart, "--device", "cpu", cwd=apart)
    assert done.returncode == 130, done.stderr
    assert f"of 60; resume with: controlvae resume {apart}\n" in done.stdout
    assert [(apart / name / "events.jsonl").read_bytes() for name in ("seed-3", "wider")] == later
    monkeypatch.undo()
    assert within("resume", apart, "--device", "cpu", cwd=apart).returncode == 0
    for name in ("seed-1", "seed-2", "seed-3", "wider"):
        assert_same_run(three / name, apart / name)


def test_groups_share_the_time_there_is(apart, monkeypatch):
    limits, clock = [], iter([0, 0, 2400, 3600])  # seconds: at first, and before each group

    def limited(*runs, **how):
        limits.append(how["time_limit"])
        return loop.train_runs(*runs, **how)

    monkeypatch.setattr(runner, "train_runs", limited)
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    done = within("resume", apart, "--time-limit", "1h", "--device", "cpu", cwd=apart)
    assert (done.returncode, limits) == (0, [3600, 1200]), done.stderr
    assert "no time left for 1 of 3 groups" in done.stdout
    assert f"resume with: controlvae resume {apart}\n" in done.stdout
    assert [
        RunFolder(apart / name).has_ended() for name in ("seed-1", "seed-2", "seed-3", "wider")
    ] == [True] * 3 + [False]


@pytest.mark.parametrize(("rates", "status"), [(("1e18", "1e-3"), 0), (("1e18", "1e18"), 1)])
def test_a_group_that_diverges_leaves_the_others_to_go_on(tmp_path, rates, status):
    sets = [word for word in SHORT if "=" in word]
    for batch, rate in zip((8, 16), rates, strict=True):
        one = override(
            preset("shapes2d-quick"), [*sets, f"training.batch={batch}", f"optimiser.rate={rate}"]
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


def test_runs_in_a_folder_are_found_once_whether_they_lie_there_or_are_linked_to(three, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "seeds").symlink_to(three)
    (home / "again").symlink_to(three / "seed-1")
    (home / "round").symlink_to(home)
    found = [folder.path.relative_to(home).as_posix() for folder in find_runs(home)]
    assert found == ["again", "seeds/seed-2", "seeds/seed-3", "seeds/wider"]


def test_a_run_that_cannot_be_read_leaves_the_others_to_go_on(three, apart):
    for file in (apart / "seed-3" / "checkpoint").rglob("tensors.safetensors"):
        file.write_bytes(b"")
    (apart / "wider" / "experiment.json").write_text("{")
    done = within("resume", apart, "--device", "cpu", cwd=apart)
    assert done.returncode == 2
    assert all(
        f"controlvae: {words}" in done.stderr
        for words in ("no intact checkpoint in", f"{apart / 'wider'}")
    )
    for name in ("seed-1", "seed-2"):
        assert_same_run(three / name, apart / name)


def test_a_run_that_was_stopped_ahead_of_others_is_not_put_back(three, tmp_path):
    home = tmp_path / "seeds"
    with ended_after(20):
        assert within("train", *SHORT, "--seeds", 2, "--run", home, cwd=tmp_path).returncode == 0
    behind = int(newest(home / "seed-2").name[5:])
    with ended_after(behind + 1):
        assert within("resume", home / "seed-1", "--device", "cpu", cwd=tmp_path).returncode == 0
    ahead = int(newest(home / "seed-1").name[5:])
    assert (
        home / "seed-1" / "checkpoint" / f"step-{behind:010d}"
    ).is_dir()  # which it could go back to
    done = within("resume", home, "--device", "cpu", cwd=tmp_path)
    assert [f"from step {step}" in done.stderr for step in (behind, ahead)] == [True, True], (
        done.stderr
    )
    for name in ("seed-1", "seed-2"):
        assert_same_run(three / name, home / name)


def test_runs_that_others_train_on_meanwhile_are_grouped_anew(three, apart, monkeypatch):
    resume = runner.resume_runs

    def meanwhile(folders, *words):
        monkeypatch.setattr(runner, "resume_runs", resume)
        with ended_after(50):
            assert within("resume", apart / "seed-3", "--device", "cpu", cwd=apart).returncode == 0
        resume(folders, *words)

    monkeypatch.setattr(runner, "resume_runs", meanwhile)
    done = within("resume", apart, "--device", "cpu", cwd=apart)
    assert done.returncode == 0, done.stderr
    for name in ("seed-1", "seed-2", "seed-3", "wider"):
        assert_same_run(three / name, apart / name)


def test_runs_whose_data_is_not_there_are_left_as_they_are_and_others_go_on(tmp_path):
    for batch in (4, 8):
        one = override(
            preset("text-quick"), ['data=TextFile("gone.txt")', f"training.batch={batch}"]
        )
        RunFolder(tmp_path / str(batch)).create(one, "")
    sets = [word for word in SHORT if "=" in word]
    RunFolder(tmp_path / "well").create(override(preset("shapes2d-quick"), sets), "")
    done = within("resume", tmp_path, "--device", "cpu", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("gone.txt")) == (2, 2)
    assert all((tmp_path / batch / "experiment.json").is_file() for batch in ("4", "8"))
    assert RunFolder(tmp_path / "well").has_ended()
