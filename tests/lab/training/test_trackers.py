"""Loggers: each with its real package, alone and side by side, after a crash and when it fails."""

import csv
import json
import shutil
import sys
from functools import partial
from typing import ClassVar

import pytest
from wandb_files import read_offline_run

from controlvae import lab
from controlvae.errors import UserError
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.training import trackers
from controlvae.lab.training.trackers import CSV, MLflow, TensorBoard, WandB, make_trackers
from controlvae.lab.training.trackers.base import flat_settings, numbers

SMALL = {
    "training.steps": 40,
    "training.batch": 4,
    "training.log_every": 5,
    "data.images": 64,
    "model.channels": (4, 4, 4),
    "model.hidden": 16,
}
QUIET = {"device": "cpu", "progress": False, "checkpoint_every": 0.0}


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def train(run, **options):
    return lab.train("shapes2d-quick", run=run, overrides=SMALL, **{**QUIET, **options})


def crash(run):
    """Take back the last steps of a run, as a crash between two checkpoints does."""
    shutil.rmtree(sorted((run / "checkpoint").glob("step-*"))[-1])
    events = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(events[:-1]))  # without the end


def read_tensorboard(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    return {
        name: [(event.step, event.value) for event in board.Scalars(name)]
        for name in board.Tags()["scalars"]
    }


def read_wandb(run):
    _, rows, _ = read_offline_run(run)
    names = [name for name in rows[0] if not name.startswith("_")]
    return {name: [(row["_step"], row[name]) for row in rows] for name in names}


def read_mlflow(run):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    run_id = json.loads((run / "trackers.json").read_text())["mlflow"]
    return {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]
        for name in client.get_run(run_id).data.metrics
    }


def read_csv(run):
    with (run / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != "step"]
    return {name: [(int(row["step"]), float(row[name])) for row in rows] for name in names}


READERS = {
    "tensorboard": (read_tensorboard, ["tensorboard"]),
    "wandb": (read_wandb, ["wandb"]),
    "mlflow": (read_mlflow, ["mlflow", "sqlalchemy", "alembic"]),
    "csv": (read_csv, []),
}


@pytest.fixture(params=READERS)
def service(request):
    """Return the name of a logger whose package is installed, and a reader of what it wrote."""
    reader, packages = READERS[request.param]
    for package in packages:
        pytest.importorskip(package)
    return request.param, reader


def logged(run):
    """Return what a logger should have: each number of `log.jsonl` with its step."""
    columns = {}
    for record in RunFolder(run).records():
        for name, value in numbers(record).items():
            columns.setdefault(name, []).append((record["step"], pytest.approx(value, rel=1e-6)))
    return columns


def test_every_number_of_the_log_arrives(service, tmp_path):
    name, read = service
    train(tmp_path / "run", logger=name)
    found = read(tmp_path / "run")
    assert found == logged(tmp_path / "run")
    assert {"kl", "beta", "elbo", "target", "kl_per_latent/1"} <= found.keys()
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_runs_side_by_side_have_a_logger_each(service, tmp_path):
    name, read = service
    train(tmp_path / "runs", logger=[name], seeds=2)
    one, two = (tmp_path / "runs" / seed for seed in ("seed-1", "seed-2"))
    assert read(one) == logged(one)
    assert read(two) == logged(two)
    assert read(one) != read(two)


def test_steps_that_a_crash_takes_back_are_not_there_twice(service, tmp_path):
    name, read = service
    run = tmp_path / "run"
    train(run, logger=name)
    crash(run)
    lab.resume(run, logger=name, **QUIET)
    found = read(run)
    if name == "wandb":  # two files of one run: the service drops the steps it has
        assert len(found["kl"]) > len(logged(run)["kl"])
        found = {key: list(dict(points).items()) for key, points in found.items()}
        _, _, ids = read_offline_run(run)
        assert len(ids) == 2
        assert len(set(ids)) == 1
    assert found == logged(run)


def test_csv_rows_beyond_the_log_are_cut_and_missing_rows_are_filled_in(tmp_path):
    run = tmp_path / "run"
    train(run)
    crash(run)
    (run / "log.csv").write_text("step,kl\n5,1.0\n1000,9.0\n10")  # of other steps, and torn
    lab.resume(run, logger="csv", **QUIET)
    assert read_csv(run) == logged(run)


def test_csv_takes_new_columns(tmp_path):
    folder = RunFolder(tmp_path)
    table = CSV(folder)
    first = {"step": 5, "kl": 1.0, "beta": 1.0, "reconstruction": 2.0, "target": None}
    first["saturated"] = 0.0
    table.write(first)
    folder.log_file.write_text(json.dumps(first) + "\n")
    table.write({**first, "step": 10, "tc": 0.5})
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "step,kl,beta,reconstruction,saturated,tc"
    assert lines[1:] == ["5,1.0,1.0,2.0,0.0,", "10,1.0,1.0,2.0,0.0,0.5"]


def test_settings_go_to_wandb(tmp_path):
    pytest.importorskip("wandb")
    train(tmp_path / "run", logger=partial(WandB, project="mine"))
    config, _, _ = read_offline_run(tmp_path / "run")
    assert config["training"]["steps"] == 40
    assert config["control"]["type"] == "PI"


def test_settings_go_to_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    run = tmp_path / "run"
    train(run, logger=partial(MLflow, experiment="mine"))
    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    settings = flat_settings(RunFolder(run))
    assert found.data.params == {name: str(value) for name, value in settings.items()}
    assert found.data.params["training.steps"] == "40"
    assert found.info.status == "FINISHED"


def test_mlflow_uses_the_store_of_the_user(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'shared.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "shared")
    train(tmp_path / "runs", logger="mlflow", seeds=2)
    client = MlflowClient(tracking_uri=uri)
    found = client.search_runs([client.get_experiment_by_name("shared").experiment_id])
    assert sorted(run.info.run_name for run in found) == ["runs/seed-1", "runs/seed-2"]
    assert not (tmp_path / "runs" / "seed-1" / "mlflow.db").exists()


class Recorder:
    """Logger of a user."""

    opened: ClassVar[list] = []

    def __init__(self, folder=None):
        self.folder, self.records, self.closed = folder, [], 0
        Recorder.opened.append(self)

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed += 1


def test_an_object_a_class_and_a_function_of_the_user(tmp_path):
    Recorder.opened = []
    mine = Recorder()
    train(tmp_path / "run", logger=[mine, Recorder, lambda folder: Recorder(folder=folder), "csv"])
    expected = RunFolder(tmp_path / "run").records()
    assert len(expected) == 8
    assert [one.records for one in Recorder.opened] == [expected] * 3
    assert [one.closed for one in Recorder.opened] == [1] * 3
    assert Recorder.opened[1].folder.path == tmp_path / "run"
    assert (tmp_path / "run" / "log.csv").is_file()


def test_an_object_does_not_serve_several_runs(tmp_path):
    with pytest.raises(UserError, match="Recorder serves one run, but there are 2"):
        train(tmp_path / "runs", logger=Recorder(), seeds=2)
    assert not (tmp_path / "runs").exists()
    train(tmp_path / "runs", seeds=2)
    with pytest.raises(UserError, match="Recorder serves one run"):
        lab.resume(tmp_path / "runs", logger=Recorder(), **QUIET)


class Failing(Recorder):
    """Logger that fails at one of its methods."""

    def __init__(self, where, folder):
        self.where = where
        self.fail("start")
        super().__init__(folder)

    def fail(self, where):
        if where == self.where:
            raise ConnectionError("the server is gone\nand more")

    def write(self, record):
        super().write(record)
        self.fail("write")

    def close(self):
        super().close()
        self.fail("close")


@pytest.mark.parametrize("where", ["start", "write", "close"])
def test_training_continues_without_a_logger_that_fails(where, tmp_path):
    Recorder.opened = []
    with pytest.warns(UserWarning, match=r"the server is gone\); training continues") as warned:
        train(tmp_path / "run", logger=[partial(Failing, where), "csv"])
    assert len([one for one in warned if "server is gone" in str(one.message)]) == 1
    records = RunFolder(tmp_path / "run").records()
    assert records[-1]["step"] == 40
    assert read_csv(tmp_path / "run") == logged(tmp_path / "run")
    if where == "write":
        assert Recorder.opened[0].records == records[:1]


def test_the_old_flag_is_the_same_as_its_name():
    pytest.importorskip("tensorboard")
    from controlvae.lab.training.runner import RunOptions

    assert RunOptions.parse("cpu", tensorboard=True).trackers == (TensorBoard,)
    both = RunOptions.parse("cpu", tensorboard=True, logger=["csv", "tensorboard", "csv"])
    assert both.trackers == (CSV, TensorBoard)
    assert RunOptions.parse("cpu").trackers == make_trackers(None) == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wandbb", "no logger 'wandbb'; did you mean 'wandb'"),
        (["csv", 3], "logger takes tensorboard, wandb, mlflow, csv, a class .* got 3"),
    ],
)
def test_unusable_loggers_are_named(spec, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(tmp_path / "run", logger=spec)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("tensorboard", "tensorboard", "tensorboard"),
        ("wandb", "wandb", "trackers"),
        ("mlflow", "mlflow", "trackers"),
        ("mlflow", "alembic", "trackers"),
    ],
)
def test_a_missing_package_is_named_with_its_installation(name, package, extra, monkeypatch):
    real = trackers.base.importlib.util.find_spec
    stand_in = real("json")  # for the packages that are not missing here
    monkeypatch.setattr(
        trackers.base.importlib.util,
        "find_spec",
        lambda asked: None if asked == package else real(asked) or stand_in,
    )
    with pytest.raises(UserError, match=rf"needs {package}: pip install 'controlvae\[{extra}\]'"):
        make_trackers(name)


def test_a_folder_of_the_same_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "some_tracker").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match="needs some_tracker"):
        trackers.base.require_package("some", "some_tracker")


def test_the_command_takes_several_loggers(tmp_path):
    from command import within
    from tiny import TINY, sets

    short = sets("training.steps=14")
    done = within(
        *("train", "shapes2d-quick", *TINY, *short, "--run", "run"),
        *("--logger", "csv", "--logger", "csv"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert read_csv(tmp_path / "run") == logged(tmp_path / "run")
    done = within("train", "shapes2d-quick", *TINY, "--logger", "paper", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("controlvae: no logger 'paper'; known: tensorboard, wandb,")
