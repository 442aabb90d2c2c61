"""The dashboard: its server, and target requests during training."""

import contextlib
import io
import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from command import ONE_THREAD, command, controlvae, ended_after, within
from PIL import Image

import controlvae as cv
from controlvae.errors import UserError
from controlvae.lab.config import override, preset
from controlvae.lab.dashboard.log_tail import LogTail
from controlvae.lab.dashboard.model_views import ModelCache, encode_example
from controlvae.lab.dashboard.run_list import RunList
from controlvae.lab.data.registry import load_dataset
from controlvae.lab.engines.select import make_engine
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import decode_codes, load_run
from controlvae.lab.runs.requests import request_target
from controlvae.lab.training.loop import Run, train_runs
from controlvae.lab.training.restore import restore

SMALL = [
    "training.steps=60",
    "training.batch=16",
    "training.log_every=5",
    "data.images=256",
    "model.channels=(4,4,4)",
    "model.hidden=16",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train two runs in a folder: one that finished, and one that was stopped."""
    root = tmp_path_factory.mktemp("runs")
    sets = [word for text in SMALL for word in ("--set", text)]
    for name, ending in (("ended", contextlib.nullcontext()), ("stopped", ended_after(40))):
        with ending:
            done = within(
                "train",
                "shapes2d-quick",
                *sets,
                "--device",
                "cpu",
                "--run",
                root / "some" / name,
                cwd=root,
            )
        assert done.returncode == 0, done.stderr
    return root


@contextlib.contextmanager
def served(root):
    """Yield the address of the dashboard over a folder, and its process."""
    line = command("dashboard", root, "--no-open", "--port", "0")
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ONE_THREAD
    )
    try:
        yield process.stdout.readline().split(": ")[1].split()[0].rstrip("/"), process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def page(trained):
    with served(trained) as (address, _):
        yield address


def get(address, path, **parameters):
    query = urllib.parse.urlencode(parameters, doseq=True)
    return urllib.request.urlopen(f"{address}{path}?{query}", timeout=60)


def status(request):
    """Return the status code of a request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    return refused.value.code


def events(stream):
    """Yield the server-sent events of a stream."""
    for line in stream:
        if line.startswith(b"event: "):
            yield line.split()[1].decode(), json.loads(next(stream).removeprefix(b"data: "))


def test_stream_has_states_and_logs(trained, page):
    with get(page, "/events", run="some/ended") as stream:
        received = events(stream)
        kind, content = next(received)
        assert kind == "runs"
        assert {each["run"]: each["state"] for each in content["runs"]} == {
            "some/ended": "finished",
            "some/stopped": "stopped",
        }
        kind, content = next(received)
    records = RunFolder(trained / "some" / "ended").records()
    assert kind == "log"
    assert content["columns"]["step"] == [record["step"] for record in records]
    assert content["columns"]["kl"] == pytest.approx([record["kl"] for record in records], rel=1e-4)
    for latent, values in enumerate(content["columns"]["latents"]):
        assert values == pytest.approx(
            [record["kl_per_latent"][latent] for record in records], rel=1e-4
        )


def test_log_is_read_again_after_a_resume(tmp_path):
    log = tmp_path / "log.jsonl"
    tail = LogTail(log)
    lines = [json.dumps({"step": step}) + "\n" for step in range(6)]
    assert tail.read() == (False, [])
    log.write_text("".join(lines[:2]) + lines[2][:5])  # the third is being written
    assert tail.read() == (False, [{"step": 0}, {"step": 1}])
    log.write_text("".join(lines[:4]))
    assert tail.read() == (False, [{"step": 2}, {"step": 3}])
    log.write_text("".join(lines[:2]))
    assert tail.read() == (True, [{"step": 0}, {"step": 1}])
    # Truncated and written beyond the old position between two reads.
    log.write_text("".join(lines[:1]) + lines[1].rstrip() + " " * 3 + "\n" + "".join(lines[2:]))
    assert tail.read() == (True, [{"step": step} for step in range(6)])
    log.write_text("".join(lines[:3]) + "not a record\n" + lines[4])
    assert tail.read() == (True, [{"step": step} for step in (0, 1, 2, 4)])
    log.unlink()
    assert tail.read() == (True, [])


def test_every_nth_line_of_a_long_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("controlvae.lab.dashboard.log_tail._MAX_NUMBERS", 1)
    monkeypatch.setattr("controlvae.lab.dashboard.log_tail._MIN_POINTS", 10)
    log = tmp_path / "log.jsonl"
    tail = LogTail(log)
    log.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 101)))
    is_reset, records = tail.read()
    steps = [record["step"] for record in records]
    assert not is_reset
    assert (steps[0], steps[-1]) == (1, 100)
    assert len(steps) == 11
    with log.open("a") as file:
        file.write('{"step": 101}\n')
    assert tail.read() == (False, [{"step": 101}])
    log.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 51)))
    is_reset, records = tail.read()
    assert is_reset
    assert [record["step"] for record in records] == [1, *range(5, 51, 5)]


def test_corrupt_folder_does_not_hide_the_others(trained, tmp_path):
    good = trained / "some" / "ended"
    for name in ("good", "torn", "odd", "strange", "infinite"):
        shutil.copytree(good, tmp_path / name)
    (tmp_path / "torn" / "experiment.json").write_text('{"format": 1, "exp')
    (tmp_path / "odd" / "events.jsonl").write_text('{"event": "target moved"}\n')
    (tmp_path / "strange" / "metrics.json").write_text('{"step": 1, "test": "x"}')
    last = RunFolder(good).records()[-1]
    (tmp_path / "infinite" / "log.jsonl").write_text(
        json.dumps({**last, "kl": float("inf"), "target": None}) + "\n"
    )
    run_list = RunList(tmp_path)
    run_list.refresh()
    run_list.add_warnings()
    # As a browser reads it.
    content = json.loads(json.dumps(run_list.summaries(), allow_nan=False))
    seen = {run["run"]: run for run in content}
    assert {name for name, run in seen.items() if "error" in run} == {"torn", "odd", "strange"}
    assert seen["good"]["latest"]["kl"] == last["kl"]
    shutil.rmtree(tmp_path / "torn")
    shutil.copytree(good, tmp_path / "new")
    assert {run["run"] for run in run_list.refresh()} == {
        "good",
        "odd",
        "strange",
        "infinite",
        "new",
    }


def test_run_created_later_is_followed(trained, page):
    with get(page, "/events", run="some/later") as stream:
        received = events(stream)
        assert next(received)[0] == "runs"
        shutil.copytree(trained / "some" / "ended", trained / "some" / "later")
        try:
            content = next(content for kind, content in received if kind == "log")
        finally:
            shutil.rmtree(trained / "some" / "later")
    assert content["run"] == "some/later"


def test_image_of_a_code_is_the_decoders(trained, page):
    with get(page, "/latents", run="some/ended") as answer:
        found = json.load(answer)
    code = [*found["code"][:-1], 1.5]
    with get(page, "/image", run="some/ended", code=",".join(map(str, code))) as answer:
        shown = np.asarray(Image.open(io.BytesIO(answer.read())))
    run = load_run(RunFolder(trained / "some" / "ended"))
    wanted = decode_codes(run, torch.tensor([code]))[0, 0].numpy()
    assert np.abs(shown[..., 0] / 255 - wanted).max() <= 0.5 / 255 + 1e-6
    assert [each["kl"] for each in found["latents"]] == sorted(
        (each["kl"] for each in found["latents"]), reverse=True
    )


def test_missing_images_are_reported_until_they_return(trained, monkeypatch):
    def missing(settings, root):
        raise UserError("they have moved")

    models, folder = ModelCache(None, torch.device("cpu")), RunFolder(trained / "some" / "ended")
    with monkeypatch.context() as moved:
        moved.setattr("controlvae.lab.runs.data.load_dataset", missing)
        for example in (None, 3):
            with pytest.raises(UserError, match="they have moved"):
                encode_example(models.load(folder), example)
    assert len(encode_example(models.load(folder), 3)) == models.load(folder).model.latents


def test_long_law_is_abbreviated_and_corrupt_metrics_reported(tmp_path):
    folder = RunFolder(tmp_path / "played")
    played = cv.Points(tuple(range(100)), tuple(range(5, 105)))
    folder.create(replace(preset("shapes2d-quick"), control=played), "")
    folder.metrics_file.write_text("{")  # torn
    run_list = RunList(tmp_path)
    run_list.refresh()
    run_list.add_warnings()
    (shown,) = run_list.summaries()
    assert (
        shown["law"]
        == "Points(steps=(0, ... 100 numbers ..., 99), values=(5, ... 100 numbers ..., 104))"
    )
    assert any("metrics.json" in line for line in shown["warnings"])


def test_foreign_and_invalid_requests_are_refused(trained, page, tmp_path):
    def post(run, body, **headers):
        address = f"{page}/target?{urllib.parse.urlencode({'run': run})}"
        return urllib.request.Request(address, data=body, headers=headers)

    json_kind = {"Content-Type": "application/json"}
    assert status(urllib.request.Request(page, headers={"Host": "elsewhere.example"})) == 403
    assert status(post("some/stopped", b'{"target": 9}', **{"Content-Type": "text/plain"})) == 415
    for target in (b"-9", b'"9"', b"NaN", b"true", b"1" + b"0" * 400):
        assert status(post("some/stopped", b'{"target": ' + target + b"}", **json_kind)) == 400
    assert [
        status(post("some/stopped", body, **json_kind)) for body in (b"9", b"{", b" " * 10_000)
    ] == [400, 400, 413]
    assert (
        status(post("some/ended", b'{"target": 9}', **json_kind)) == 400
    )  # nothing is left to train
    shutil.copytree(trained / "some" / "stopped", tmp_path / "outside")
    assert status(post(f"../{tmp_path.name}/outside", b'{"target": 9}', **json_kind)) == 404
    assert status(f"{page}/image?run=some/ended&code=1,2") == 400
    assert not (trained / "some" / "stopped" / "request.json").exists()


def test_ctrl_c_stops_the_server_with_open_streams(trained):
    with served(trained) as (address, process), get(address, "/events") as stream:
        assert next(events(stream))[0] == "runs"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == ""


def test_port_in_use_is_a_one_line_error(trained, page):
    done = controlvae("dashboard", trained, "--no-open", "--port", page.rpartition(":")[2])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--port" in done.stderr


def two_runs(root, law="PI(Linear(2.0, 20.0, steps=60))"):
    """Create two seeds of a run, and the engine that trains them."""
    settings = [*SMALL, f"control={law}"]
    experiments = [
        override(preset("shapes2d-quick"), [*settings, f"training.seed={seed}"]) for seed in (1, 2)
    ]
    folders = [RunFolder(root / f"seed-{seed}") for seed in (1, 2)]
    for experiment, folder in zip(experiments, folders, strict=True):
        folder.create(experiment, "")
    engine = make_engine(experiments, load_dataset(experiments[0].data), torch.device("cpu"))
    return [Run.open(folder) for folder in folders], engine


def test_requested_target_is_applied_and_survives_a_kill(tmp_path):
    runs, engine = two_runs(tmp_path)
    for progress in train_runs(runs, engine, checkpoint_every=1e9):
        if progress.step == 20:
            request_target(runs[0].folder, 5)
        if progress.step == 40:
            break  # like a kill: nothing more is written
    for run in runs:
        run.logger.close()
    assert not runs[0].folder.request_file.exists()
    (moved,) = [event for event in runs[0].folder.events() if event["event"] == "target moved"]
    assert (moved["step"], moved["target"]) == (20, 5.0)

    resumed = [Run.open(run.folder) for run in runs]
    _, engine = two_runs(tmp_path / "again")
    restore(resumed, engine)
    assert engine.step == 20
    assert len(list(train_runs(resumed, engine))) > 0
    steered, other = (run.folder.records() for run in resumed)
    assert [record["target"] for record in steered if record["step"] > 20] == [5.0] * 8
    assert [record["target"] for record in other] == pytest.approx(
        [2 + 18 * (step - 2) / 60 for step in range(5, 61, 5)]
    )
    assert "target moved" not in [event["event"] for event in resumed[1].folder.events()]


def test_target_requested_after_the_last_step_is_not_logged(tmp_path):
    runs, engine = two_runs(tmp_path)
    for progress in train_runs(runs, engine):
        if progress.step == 60:
            request_target(runs[0].folder, 5)
    assert [event["event"] for event in runs[0].folder.events()] == ["saved"]


@pytest.mark.parametrize(
    ("text", "law"),
    [("{", "PI(9.0)"), ('{"target": -4}', "PI(9.0)"), ('{"target": 4}', "Constant(1.0)")],
)
def test_invalid_request_is_refused_and_training_continues(tmp_path, text, law):
    runs, engine = two_runs(tmp_path, law)
    runs[0].folder.request_file.write_text(text)
    assert [progress.step for progress in train_runs(runs, engine)][-1] == 60
    assert "request refused" in [event["event"] for event in runs[0].folder.events()]
    assert not runs[0].folder.request_file.exists()
