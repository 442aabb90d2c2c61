"""Jobs of several ranks: one run folder, errors that all ranks share, elastic resuming."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_groups
import rank_job_cases
import torch

from controlvae import lab
from controlvae.errors import RunError
from controlvae.lab.ranks.group import UNKNOWN_LOSS
from controlvae.lab.ranks.launch import raise_failure, record_failure, record_resume
from controlvae.lab.runs.folder import RunFolder

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
STEPS = 1_000
TINY = {
    "training.steps": STEPS,
    "training.batch": 16,
    "training.log_every": 20,
    "data.images": 128,
    "model.channels": "(4,4,4)",
    "model.hidden": 16,
}
SETS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Return what the jobs returned, and the folder of their runs."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "runs").mkdir()
    os.environ["RANK_RUNS"] = str(folder / "runs")
    try:
        return rank_groups.run_cases(rank_job_cases.__file__, folder, (1, 2)), folder / "runs"
    finally:
        del os.environ["RANK_RUNS"]


def as_text(error):
    return bytes(error.tolist()).decode()


def test_ranks_write_the_log_of_one_process(jobs):
    found, runs = jobs
    alone = found["unbroken"][1, 0]
    assert len(alone) == 12
    for rank in range(2):
        torch.testing.assert_close(found["unbroken"][2, rank], alone, rtol=1e-9, atol=1e-9)
    folders = [runs / "unbroken-1", runs / "unbroken-2"]
    assert len({tuple(sorted(p.name for p in folder.iterdir())) for folder in folders}) == 1
    started = [RunFolder(folder).events()[0] for folder in folders]
    assert [event.get("ranks") for event in started] == [None, 2]
    one, two = ([v["elbo"] for v in RunFolder(folder).validations()] for folder in folders)
    assert one == pytest.approx(two, rel=1e-9)


def test_a_run_of_two_ranks_resumes_on_one_and_the_other_way_round(jobs):
    found, runs = jobs
    whole = found["unbroken"][1, 0]
    model, data = rank_job_cases.make()
    options = {"device": "cpu", "progress": False}
    run = lab.resume(runs / "broken-2", model, data, **options)
    torch.testing.assert_close(rank_job_cases.read_log(run), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["resumed"][2, 0], whole, rtol=1e-9, atol=1e-9)
    for name in ("broken-1", "broken-2"):
        resumed = RunFolder(runs / name).events()
        assert [e["step"] for e in resumed if e["event"] == "resumed"] == [rank_job_cases.STOP]


def test_a_sharded_run_resumes(jobs):
    found, runs = jobs
    whole = found["unbroken"][1, 0]
    assert len(found["sharded"][2, 0]) == len(whole)
    assert found["sharded"][2, 0].equal(found["sharded"][2, 1])
    names = [file.name for file in (runs / "sharded-2" / "checkpoint").rglob("*") if file.is_file()]
    assert {Path(name).suffix for name in names} == {".safetensors", ".json"}


def test_default_folders_are_those_of_rank_0(jobs):
    found, runs = jobs
    assert sorted(path.name for path in (runs / "default/runs").iterdir()) == [
        "plainvae",
        "plainvae-2",
    ]
    logs = found["default_folder"][2, 0]
    assert logs[0].equal(logs[1])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other_law", ("rank 1", "control")),
        ("other_data", ("rank 1", "data")),
        ("other_model", ("rank 1", "model")),
        ("missing_file", ("rank 1", "there-1.py")),
        ("small_batch", ("training.batch", "2 ranks")),
        ("full_folder", ("not empty", "--run")),
    ],
)
def test_ranks_that_differ_fail_together_before_the_first_step(jobs, name, words):
    found, runs = jobs
    first, second = (as_text(found[name][2, rank]) for rank in range(2))
    assert first == second
    assert first.startswith("U")
    assert "\n" not in first
    assert all(word in first for word in words)
    left = [p.name for p in runs.iterdir() if p.name.endswith("-2")]
    assert not {f"{name.split('_')[1]}-2", f"{name.split('_')[0]}-2"} & set(left) - {"full-2"}
    assert [p.name for p in (runs / "full-2").iterdir()] == ["mine"]


def environment():
    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path]), "OMP_NUM_THREADS": "1"}


def wait_for(condition, process):
    for _ in range(1_200):
        if found := condition():
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("nothing happened")


def pid_of_rank(folder, rank):
    """Return the process of a rank that trains into a folder, or None."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if str(folder).encode() in words and f"RANK={rank}".encode() in (
                path / "environ"
            ).read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:
            continue
    return None


def start_and_kill(command, folder, rank):
    """Run a command, kill a rank after its first checkpoint, and return status and output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment(), **pipes)
    try:
        wait_for(lambda: list(folder.glob("checkpoint/step-*")), process)
        os.kill(wait_for(lambda: pid_of_rank(folder, rank), process), signal.SIGKILL)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc of Linux")
def test_torchrun_restarts_a_killed_rank_and_continues_its_run(tmp_path):
    folder = tmp_path / "run"
    run = ["train", "shapes2d-quick", *SETS, "--device", "cpu", "--checkpoint-every", "0.2"]
    command = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "-m", "controlvae", "--"]
    status, out, err = start_and_kill([*command, *run, "--run", folder], folder, rank=1)
    assert status == 0, err
    assert f"finished at step {STEPS:,}" in out
    lines = [line for line in err.splitlines() if "rank" in line and "controlvae:" in line]
    assert len(lines) == 1
    assert "the run is saved at step" in lines[0]
    events = RunFolder(folder).events()
    resumed = [event["step"] for event in events if event["event"] == "resumed"]
    assert len(resumed) == 1
    assert 0 < resumed[0] < STEPS
    steps = [json.loads(line)["step"] for line in (folder / "log.jsonl").open()]
    assert steps == list(range(20, STEPS + 1, 20))


def test_devices_fail_with_one_line_and_exit_status_2(tmp_path):
    folder = tmp_path / "run"
    run = ["train", "shapes2d-quick", "--set", "training.batch=1", "--device", "cpu"]
    command = [sys.executable, "-m", "controlvae", *run, "--run", folder, "--devices", "2"]
    pipes = {"capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run(command, env=environment(), check=False, **pipes)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "training.batch is 1, fewer examples than the 2 ranks" in done.stderr
    assert not folder.exists()


class Failure:
    """What torch knows of a process that ended."""

    def __init__(self, exitcode):
        self.exitcode = exitcode

    def signal_name(self):
        return signal.Signals(-self.exitcode).name


@pytest.mark.parametrize(
    ("messages", "killed", "line"),
    [
        ({0: "bad data"}, {}, "bad data"),
        (
            {0: f"{UNKNOWN_LOSS}; the run is saved at step 5"},
            {1: -signal.SIGKILL},
            "rank 1 was killed by SIGKILL; the run is saved at step 5",
        ),
        (
            {1: UNKNOWN_LOSS},
            {0: -signal.SIGKILL},
            "rank 0 was killed by SIGKILL; continue with: controlvae resume run",
        ),
        ({}, {0: 3}, "rank 0 ended without a message; continue with: controlvae resume run"),
    ],
)
def test_the_line_of_a_failed_job_names_its_cause(tmp_path, monkeypatch, messages, killed, line):
    monkeypatch.setenv("CONTROLVAE_LAUNCHED", str(tmp_path))
    record_resume("controlvae resume run")
    for rank, message in messages.items():
        monkeypatch.setenv("RANK", str(rank))
        assert record_failure(message, 1)
    failures = {rank: Failure(code) for rank, code in killed.items()} or {0: Failure(1)}
    with pytest.raises(RunError, match=f"^{line}$"):
        raise_failure(tmp_path, failures)
