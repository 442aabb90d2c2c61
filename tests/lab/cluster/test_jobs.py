"""Jobs: what ends, requeues, retries, fails or cancels them. submitit runs them on this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import ONE_THREAD, command, controlvae, within
from slurm_node import TINY, wait_until
from tiny import assert_same_run

from controlvae.errors import UserError
from controlvae.lab.cluster import job, preflight
from controlvae.lab.cluster.job import TrainingJob
from controlvae.lab.cluster.records import JobRecord, JobSpec, create_records
from controlvae.lab.cluster.status import cancel, run_states

SWEEP = ["sweep", "shapes2d-quick", "--vary", "control.target=14,18", *TINY]
SWEEP += ["--set", "training.steps=700", "--checkpoint-every", "0.3s"]


def events_of(record):
    return [event["event"] for event in record.events()]


def worker_processes(record):
    """Return the training processes of a job."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "controlvae.lab.cluster.worker" in words and record.name in words:
            found += [int(path.parent.name)] * (str(record.root) in words)
    return found


def lines_of(record):
    (folder,) = record.folders()
    return folder.log_file.read_bytes().count(b"\n") if folder.log_file.is_file() else 0


def test_a_job_that_is_requeued_killed_and_cancelled_ends_as_if_nothing_had_happened(
    tmp_path, monkeypatch
):
    pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setenv("CONTROLVAE_CACHE", str(tmp_path / "cache"))
    environment = {**ONE_THREAD, "CONTROLVAE_CACHE": str(tmp_path / "cache")}
    root = tmp_path / "jobs-runs"
    words = command(*SWEEP, "--run", root, "--cluster", "local", "--array-limit", "2")
    submitter = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    one, two = JobRecord(root, "job-001"), JobRecord(root, "job-002")
    wait_until(lambda: two.spec_file.exists() and one.events() and lines_of(one) > 3)
    os.kill(one.events()[-1]["process"], signal.SIGUSR2)  # as before a time limit
    wait_until(lambda: lines_of(two) > 3)
    cancel(two.folders()[0].path)
    wait_until(lambda: events_of(one)[-2:] == ["requeued", "started"])
    worker = wait_until(lambda: worker_processes(one))
    os.kill(worker[0], signal.SIGKILL)  # as by the kernel when memory is short
    wait_until(lambda: "retrying" in events_of(one))
    out, err = submitter.communicate(timeout=300)
    assert submitter.returncode == 1, (out, err)
    assert "1 of 2 jobs failed: job-002: it was cancelled" in err
    assert events_of(one)[-1] == "ended"
    assert events_of(two)[-1] == "cancelled"
    killed = next(event for event in one.events() if event["event"] == "retrying")
    assert "SIGKILL" in killed["lines"][-1]
    states = {state.folder.path.parent.name: state.state for state in run_states(root)}
    assert states == {"target=14": "finished", "target=18": "cancelled"}
    again = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "plan: 1 run in 1 job" in again.stdout
    assert "target=18" in again.stdout.partition("expected")[2]  # the summary of the sweep
    plain = controlvae(*SWEEP, "--run", tmp_path / "plain", env=environment)
    assert plain.returncode == 0, plain.stderr
    for name in ("target=14/seed-1", "target=18/seed-1"):
        assert_same_run(root / name, tmp_path / "plain" / name)


class RequeuedError(Exception):
    """Stands for submitit, which ends the process."""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that starts a job whose training process is a Python program."""

    def requeue(number, frame):
        raise RequeuedError

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(job, "_SECONDS_BETWEEN_LOOKS", 0.01)
    previous = signal.signal(signal.SIGUSR2, requeue)
    (record,) = create_records(tmp_path, [JobSpec([["run"]], retries=2)])

    def run(program, made):
        signal.signal(signal.SIGUSR2, requeue)  # as submitit does at each start
        monkeypatch.setattr(job, "_worker_command", lambda *_: [sys.executable, "-c", program])
        return made()

    yield record, run
    signal.signal(signal.SIGUSR2, previous)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_job_that_fails_is_retried_as_often_as_told_and_reported_with_its_last_lines(start):
    record, run = start
    made = TrainingJob(str(record.root), record.name)
    program = "print('loading'); print('CUDA error: misaligned address'); raise SystemExit(1)"
    for _ in range(2):
        with pytest.raises(RequeuedError):
            run(program, made)
        made = made.checkpoint().function  # what submitit saves and loads again
    with pytest.raises(RuntimeError, match="misaligned"):
        run(program, made)
    assert events_of(record) == ["started", "retrying"] * 2 + ["started", "failed"]
    assert record.outcome()["lines"] == ["loading", "CUDA error: misaligned address"]


def test_wrong_input_is_not_retried(start):
    record, run = start
    program = "print('controlvae: versions differ'); raise SystemExit(2)"
    with pytest.raises(RuntimeError, match="versions differ"):
        run(program, TrainingJob(str(record.root), record.name))
    assert events_of(record) == ["started", "failed"]


def test_a_job_that_saves_nothing_within_its_time_limit_gives_up(start):
    record, run = start
    program = "import os, signal; os.kill(os.getppid(), signal.SIGUSR2); signal.pause()"
    made = TrainingJob(str(record.root), record.name)
    for _ in range(2):
        with pytest.raises(RequeuedError):
            run(program, made)
    with pytest.raises(RuntimeError, match="allow more --time"):
        run(program, made)


def test_a_cancelled_job_does_not_start(start):
    record, run = start
    record.cancel_file.touch()
    assert run("raise SystemExit(1)", TrainingJob(str(record.root), record.name)) == "cancelled"
    assert events_of(record) == ["cancelled"]


def test_records_get_names_of_their_own(tmp_path):
    specs = [JobSpec([[f"run-{number}"]]) for number in range(3)]
    first, second = create_records(tmp_path, specs), create_records(tmp_path, specs[:1])
    assert [record.name for record in first + second] == [f"job-00{n}" for n in (1, 2, 3, 4)]
    assert first[1].spec() == specs[1]
    assert first[1].folders()[0].path == tmp_path / "run-1"


def test_a_node_with_other_versions_is_told_in_one_line(monkeypatch):
    expected = {**preflight.installed_versions(), "torch": "1.0.0"}
    with pytest.raises(UserError, match=r"torch .* 1\.0\.0 where the jobs were submitted"):
        preflight.require_same_versions(expected)
    preflight.require_same_versions(preflight.installed_versions())


def test_a_folder_that_a_node_does_not_see_is_told_in_one_line(tmp_path):
    with preflight.token_file(tmp_path / "runs" / "later") as token:
        preflight.check_token(token)
        assert json.loads(token.read_text())["versions"] == preflight.installed_versions()
    with pytest.raises(UserError, match="is not shared"):
        preflight.check_token(token)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "slurm"], "no Slurm on this machine"),
        (["--cluster", "pbs"], "no cluster 'pbs'"),
        (["--partition", "main"], "--partition needs --cluster"),
        (["--cluster", "local", "--partition", "main"], "--partition is for --cluster slurm"),
        (["--cluster", "local", "--time", "10s"], "--time must be at least 1m"),
        (["--cluster", "local", "--time", "soon"], "--time takes a duration"),
        (["--cluster", "local", "--time-limit", "9m"], "--time-limit does not apply"),
        (["--cluster", "local", "--device", "cuda:1"], "--device is auto, cpu or cuda"),
    ],
)
def test_wrong_options_are_one_line_and_leave_nothing_behind(words, said, own_folders, monkeypatch):
    pytest.importorskip("submitit", reason="submitit is not installed")
    here = Path.cwd()
    monkeypatch.setenv("PATH", "/nowhere")
    done = within(*SWEEP, *words, cwd=here)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(here.iterdir())


def test_a_dry_run_creates_nothing_but_a_kept_measurement(own_folders):
    here = Path.cwd()
    done = within("train", "shapes2d-quick", *TINY, "--seeds", "4", "--dry-run", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "plan: 4 runs in 4 jobs" in done.stdout
    assert {path.name for path in here.iterdir()} <= {"cache", "runs"}
    assert not list(here.glob("runs/*"))
