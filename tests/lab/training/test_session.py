"""Training sessions: checkpoints and events at every kind of ending."""

from contextlib import suppress

import torch

from controlvae.lab.config import override, preset
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.eager import EagerEngine
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training
from controlvae.lab.training.loop import Run, train_runs
from controlvae.lab.training.restore import Session

TINY = ["data.images=128", "training.batch=8", "model.channels=(4,4,4)", "model.hidden=16"]


def test_stop_at_the_last_step_still_saves_a_checkpoint(tmp_path):
    experiment = override(preset("shapes2d-quick"), [*TINY, "training.steps=12"])
    folder = RunFolder(tmp_path / "run")
    folder.create(experiment, "by hand")
    engine = EagerEngine([experiment], load_dataset(experiment.data), torch.device("cpu"))
    *_, last = train_runs([Run.open(folder)], engine, stop=lambda: engine.step == 12)
    assert last.step == 12
    assert latest_step(folder.checkpoints) == 12


def test_session_logs_how_it_ended_and_releases_its_folders(tmp_path):
    experiment = override(
        preset("shapes2d-quick"), [*TINY, "training.steps=8", "training.log_every=4"]
    )
    folder, examples = RunFolder(tmp_path / "run"), load_dataset(experiment.data)
    folder.create(experiment, "")
    for ending in ("error", "break", "stop", "completion"):
        engine, runs = EagerEngine([experiment], examples, torch.device("cpu")), [Run.open(folder)]
        is_stopped = ending == "stop"
        with suppress(KeyboardInterrupt), Session(runs, engine, "cpu"):
            for progress in train_runs(runs, engine, stop=lambda value=is_stopped: value):
                if ending == "error":
                    raise KeyboardInterrupt
                if ending == "break" and progress.step == 4:  # a log record without checkpoint
                    break
        assert not in_training(folder)
    events = [event["event"] for event in folder.events()]
    assert events == ["started", "started", "started", "saved", "stopped", "resumed", "finished"]
