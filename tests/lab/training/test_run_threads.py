"""CPU threads of runs: chosen once, recorded, and kept at resume."""

import json

import pytest
import torch
from command import ended_after, within

from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.engines import threads
from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training import run_threads
from controlvae.lab.training.run_threads import parse_threads, recorded_threads
from controlvae.lab.training.scheduler import group_compatible

TINY = {
    "data.images": 128,
    "training.batch": 8,
    "model.channels": (4, 4, 4),
    "model.hidden": 16,
    "training.steps": 30,
    "training.log_every": 5,
}


@pytest.fixture(autouse=True)
def _free_choice(monkeypatch, own_folders):
    """Let torch use two threads by default, on any machine."""
    monkeypatch.setattr(run_threads, "user_threads", lambda: None)
    monkeypatch.setattr(run_threads, "available_cores", lambda: 2)
    monkeypatch.setattr(threads, "_MIN_STEPS", 1)
    monkeypatch.setattr(threads, "_MAX_SHARE", 1.0)
    with threads.use_threads(2):
        yield
        assert torch.get_num_threads() == 2


@pytest.fixture
def measured(monkeypatch):
    """Return a list of rates to measure in place of the real ones, which depend on the machine."""
    answers, real = [], run_threads.measure_threads

    def measure(*arguments):
        assert real(*arguments)  # takes real steps, and must leave no trace
        return answers.pop(0)

    monkeypatch.setattr(run_threads, "measure_threads", measure)
    return answers


def train(run, progress=False, **options):
    given = {"overrides": TINY, "device": "cpu", "progress": progress, **options}
    lab.train("shapes2d-quick", run=run, **given)
    return RunFolder(run)


def saved_threads(folder):
    saved, _ = checkpoint.load_latest(folder.checkpoints)
    return saved.numbers.get("threads")


def weights(folder):
    return checkpoint.load_latest(folder.checkpoints)[0].tensors


def threads_events(folder):
    return [event for event in folder.events() if event["event"] == "threads"]


@pytest.mark.parametrize("fastest", [1, 2])
def test_choice_is_recorded_and_equals_a_run_with_that_number(fastest, measured, tmp_path):
    measured.append({1: 10.0, 2: 10.0 if fastest == 1 else 20.0})
    chosen = train(tmp_path / "chosen")
    fixed = train(tmp_path / "fixed", threads=fastest)
    assert saved_threads(chosen) == recorded_threads(chosen) == fastest
    (event,) = threads_events(chosen)
    assert event["source"] == "measured"
    assert set(event["steps_per_second"]) == {"1", "2"}
    assert threads_events(fixed)[0]["source"] == "option"
    # Measuring has not changed anything.
    assert chosen.log_file.read_bytes() == fixed.log_file.read_bytes()
    ours, theirs = weights(chosen), weights(fixed)
    assert all(ours[name].equal(value) for name, value in theirs.items())


def test_resumed_run_keeps_its_number_and_equals_an_uninterrupted_one(measured, tmp_path):
    measured += [{1: 20.0, 2: 10.0}, {1: 20.0, 2: 10.0}]
    whole = train(tmp_path / "whole")
    with ended_after(8):
        resumed = train(tmp_path / "resumed")
    used = []
    lab.resume(
        resumed.path,
        device="cpu",
        progress=lambda _: used.append(torch.get_num_threads()),
    )
    assert not measured  # the resumed run was not measured again
    assert set(used) == {1}
    assert resumed.log_file.read_bytes() == whole.log_file.read_bytes()
    ours, theirs = weights(resumed), weights(whole)
    assert all(ours[name].equal(value) for name, value in theirs.items())
    assert len(threads_events(resumed)) == 1


def test_run_killed_before_its_first_checkpoint_keeps_its_number(measured, tmp_path):
    measured.append({1: 20.0, 2: 10.0})
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", progress=lambda update: 1 / 0)
    folder = RunFolder(tmp_path / "run")
    assert checkpoint.latest_step(folder.checkpoints) is None
    lab.resume(folder.path, device="cpu", progress=False)
    assert saved_threads(folder) == 1


def test_seeds_share_one_number(measured, tmp_path):
    measured.append({1: 20.0, 2: 10.0})
    train(tmp_path / "seeds", seeds=2)
    folders = [RunFolder(tmp_path / "seeds" / f"seed-{seed}") for seed in (1, 2)]
    assert [saved_threads(folder) for folder in folders] == [1, 1]
    assert [recorded_threads(folder) for folder in folders] == [1, 1]


def test_runs_with_different_numbers_are_not_trained_together(tmp_path):
    with ended_after(8):
        train(tmp_path / "all" / "one", threads=1)
    with ended_after(8):
        train(tmp_path / "all" / "two", threads=2)
    folders = [RunFolder(tmp_path / "all" / name) for name in ("one", "two")]
    assert [len(group.folders) for group in group_compatible(folders)] == [1, 1]
    lab.resume(tmp_path / "all", device="cpu", progress=False)
    assert [saved_threads(folder) for folder in folders] == [1, 2]


def test_explicit_number_wins_over_the_recorded_one_with_a_note(tmp_path, capsys):
    with ended_after(8):
        folder = train(tmp_path / "run", threads=1)
    done = within("resume", folder.path, "--device", "cpu", "--threads", "2", cwd=tmp_path)
    assert "threads: 2 instead of 1; results may differ" in done.stderr
    assert saved_threads(folder) == recorded_threads(folder) == 2


def test_users_own_number_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(run_threads, "user_threads", lambda: 1)
    folder = train(tmp_path / "run")
    assert saved_threads(folder) == 1
    assert threads_events(folder)[0]["source"] == "user"


def test_recorded_number_is_kept_on_fewer_cores_with_a_note(monkeypatch, tmp_path):
    with ended_after(8):
        folder = train(tmp_path / "run", threads=2)
    monkeypatch.setattr(run_threads, "available_cores", lambda: 1)
    done = within("resume", folder.path, "--device", "cpu", cwd=tmp_path)
    assert "threads: 2, as before, with 1 cores; --threads 1 changes that" in done.stderr
    assert saved_threads(folder) == 2


def test_run_of_an_earlier_version_resumes_with_the_number_of_torch(tmp_path):
    with ended_after(8):
        folder = train(tmp_path / "run", threads=1)
    for step in (folder.checkpoints).iterdir():
        saved, _ = checkpoint.load_latest(folder.checkpoints, int(step.name.partition("-")[2]))
        numbers = {key: value for key, value in saved.numbers.items() if key != "threads"}
        checkpoint.save(
            folder.checkpoints, checkpoint.Checkpoint(saved.step, saved.tensors, numbers)
        )
    events = [event for event in folder.events() if event["event"] != "threads"]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    lab.resume(folder.path, device="cpu", progress=False)
    assert saved_threads(folder) == 2
    assert threads_events(folder)[0]["source"] == "default"


def test_values_of_the_option():
    assert [parse_threads(value) for value in ("auto", "3", 3)] == [None, 3, 3]
    for value in ("0", "many", -1, "1.5", True):
        with pytest.raises(UserError, match="--threads takes auto or a number from 1 to"):
            parse_threads(value)
