"""Folders of seeds: created, grouped, resumed, and protected from other settings."""

import os
import shutil
import signal

import pytest

from controlvae.errors import Interrupted, UserError
from controlvae.lab.config import override, preset
from controlvae.lab.runs.checkpoint import load_latest
from controlvae.lab.training import runner
from controlvae.lab.training.loop import Run, train_runs
from controlvae.lab.training.runner import RunOptions
from controlvae.lab.training.scheduler import group_compatible, seed_folders, train_all

SMALL = ["training.batch=4", "data.images=64", "model.channels=(4,4,4)", "model.hidden=16"]


def test_methods_with_other_laws_train_side_by_side(tmp_path):
    names = ["shapes2d-control-16", "shapes2d-beta-100", "shapes2d-control-18"]
    made = [
        folder for name in names for folder in seed_folders(preset(name), tmp_path / name, 3, "")
    ]
    groups = [
        {folder.experiment().name for folder in together} for _, together in group_compatible(made)
    ]
    assert groups == [{names[0], names[2]}, {names[1]}]
    again = seed_folders(preset(names[0]), tmp_path / names[0], 3, "")
    assert [folder.experiment().training.seed for folder in again] == [1, 2, 3]


def test_runs_without_their_last_checkpoint_resume(tmp_path):
    experiment = override(preset("shapes2d-quick"), [*SMALL, "training.steps=60"])
    folders = seed_folders(experiment, tmp_path, 3, "")
    options = RunOptions.parse("cpu", checkpoint_every="0s")
    train_all(folders, options)
    assert list(group_compatible(folders)) == []
    corrupt, lost, archived = folders
    (corrupt.checkpoints / "step-0000000060" / "state.json").write_text("{}")
    shutil.rmtree(lost.checkpoints / "step-0000000060")
    shutil.rmtree(archived.checkpoints)  # without weights there is nothing to resume from
    logs = [folder.log_file.read_bytes() for folder in folders]
    assert [together for _, together in group_compatible(folders)] == [[corrupt, lost]]
    train_all(folders, options)
    assert [load_latest(folder.checkpoints)[0].step for folder in (corrupt, lost)] == [60, 60]
    assert [folder.log_file.read_bytes() for folder in folders] == logs
    assert list(group_compatible(folders)) == []


def test_runs_finished_by_other_processes_are_left_alone(tmp_path):
    experiment = override(preset("shapes2d-quick"), [*SMALL, "training.steps=20"])
    first, second = seed_folders(experiment, tmp_path, 2, "")
    options = RunOptions.parse("cpu", checkpoint_every="0s")
    ((_, together),) = group_compatible([first, second])  # chosen when the command starts
    train_all([first], options)
    before = first.events_file.read_bytes()
    runner.resume_runs(together, options, "the same command", withdraw=True)
    assert first.events_file.read_bytes() == before
    assert second.has_ended()


def test_stop_in_the_last_step_of_a_group_stops_the_command(tmp_path, monkeypatch):
    folders = []
    for batch in (4, 8):
        experiment = override(
            preset("shapes2d-quick"), [*SMALL, "training.steps=2", f"training.batch={batch}"]
        )
        folders += seed_folders(experiment, tmp_path / str(batch), 1, "")

    def interrupt_at_the_end(*runs, **options):
        yield from train_runs(*runs, **options)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner, "train_runs", interrupt_at_the_end)
    with pytest.raises(Interrupted):
        train_all(folders, RunOptions.parse("cpu"))
    assert [bool(folder.has_ended()) for folder in folders] == [True, False]


def test_folder_with_other_settings_is_refused(tmp_path):
    (folder,) = seed_folders(preset("shapes2d-quick"), tmp_path, 1, "")
    changed = override(preset("shapes2d-quick"), ["training.batch=32"])
    folder.events_file.write_text('{"event": "started", "step": 0}\n')
    with pytest.raises(UserError, match="other settings"):
        seed_folders(changed, tmp_path, 1, "")


def test_run_started_by_another_process_is_refused(tmp_path):
    experiment = override(preset("shapes2d-quick"), ["data.images=500"])
    (folder,) = seed_folders(experiment, tmp_path / "run", 1, "")
    started = Run.open(folder)  # its data is being loaded: no event yet
    with pytest.raises(UserError, match="trained by another process"):
        train_all([folder], RunOptions.parse("cpu"))
    assert folder.experiment() == started.experiment
