"""Claims of trials by several workers, lost workers, and damaged journals."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from controlvae.errors import UserError
from controlvae.lab.cluster import search_settings as cluster
from controlvae.lab.cluster.search import LostClaimError, SearchStudy, import_journal
from controlvae.lab.cluster.search_space import parse_space
from controlvae.lab.cluster.search_workers import Worker, WorkerWatch
from controlvae.lab.config import override, preset

pytest.importorskip("optuna", reason="pip install 'controlvae[search]'")

BASE = preset("shapes2d-quick")
SPACE = parse_space(BASE, ["control.target=4:20", "optimiser.rate=1e-4:1e-2:log"])
SETTINGS = cluster.SearchSettings("shapes2d-quick", BASE, SPACE, "elbo", "higher", "none")


@pytest.fixture
def folder(tmp_path):
    cluster.create_folder(tmp_path / "search", SETTINGS)
    return tmp_path / "search"


def study_in(folder, seed=0):
    return SearchStudy(folder, "higher", SPACE, seed, steps=100)


def silent_watch(folder):
    """Return an observer that takes a worker for lost when it is asked for the second time."""
    return WorkerWatch(folder / cluster.WORKERS_FOLDER, lost_after=-1.0)


def test_every_trial_is_claimed_once_however_many_workers_there_are(folder):
    claims, failures = [], []

    def work(name):
        try:
            study = study_in(folder)
            while (claim := study.claim(12, name)) is not None or len(study.records()) < 12:
                if claim is not None:
                    claims.append(claim)
                    study.finish(claim, claim.settings["control.target"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    records = study_in(folder).records()
    assert sorted(claim.number for claim in claims) == [record.number for record in records]
    assert len(records) == 12
    assert {record.state for record in records} == {"finished"}
    # Workers that start together must not draw the same values.
    assert len({record.value for record in records}) == 12
    best = study_in(folder).best()
    assert best.value == max(record.value for record in records)


def test_proposals_depend_on_the_seed_and_the_trial_alone(tmp_path):
    draws = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        cluster.create_folder(tmp_path / name, SETTINGS)
        found = []
        for _ in range(15):  # beyond the random start
            study = study_in(tmp_path / name, seed)  # opened again, as after a stop
            claim = study.claim(15, "w")
            if name == "b":  # stopped and resumed
                study.release(claim)
                claim = study_in(tmp_path / name, seed).claim(15, "w")
            study.finish(claim, -abs(claim.settings["control.target"] - 11))
            found.append(claim.settings)
        draws.append(found)
        assert [r.number for r in study.records()] == list(range(15))
    assert draws[0] == draws[1]
    assert draws[0][0] != draws[2][0]
    targets = [draw["control.target"] for draw in draws[0]]
    rates = [draw["optimiser.rate"] for draw in draws[0]]
    assert sorted(range(10), key=targets.__getitem__) != sorted(range(10), key=rates.__getitem__)


def test_a_trial_of_a_lost_worker_is_resumed_by_one_other(folder):
    first, second, third = study_in(folder), study_in(folder), study_in(folder)
    claim = first.claim(1, "lost")
    watches = [silent_watch(folder) for _ in range(2)]
    assert [s.requeue_lost(w, "me") for s, w in zip((second, third), watches, strict=True)] == [
        [],
        [],
    ]
    found = second.requeue_lost(watches[0], "me") + third.requeue_lost(watches[1], "you")
    assert [record.number for record in found] == [claim.number]
    claims = [study.claim(1, "me") for study in (second, third)]
    (resumed,) = [each for each in claims if each is not None]
    assert (resumed.number, resumed.settings, resumed.run) == (
        claim.number,
        claim.settings,
        claim.run,
    )
    assert resumed.attempts == 2
    with pytest.raises(LostClaimError):
        first.report(claim, 10, 1.0)
    assert not first.finish(claim, 1.0)  # it was slow and not dead: its result comes too late
    assert second.finish(resumed, 2.0)
    assert [(r.number, r.value) for r in third.records()] == [(claim.number, 2.0)]


def test_a_worker_killed_between_two_entries_loses_no_trial(folder):
    study, claim = study_in(folder), study_in(folder).claim(2, "lost")
    study._tell(claim.trial.number, "FAIL")  # and no entry follows
    observers = [study_in(folder), study_in(folder)]
    for observer in observers:
        observer._enqueue(claim.trial.number, 2)  # both saw the gap
    claims = [observer.claim(2, "me") for observer in observers]
    claims += [study.claim(2, "me") for _ in range(3)]
    numbers = [each.number for each in claims if each is not None]
    assert sorted(numbers) == [claim.number, max(numbers)]
    assert len(study.records()) == 2
    assert study_in(folder).claim(2, "me") is None


def test_a_released_trial_waits_and_one_that_ends_its_workers_fails(folder):
    study = study_in(folder)
    study.release(study.claim(1, "me"))
    assert [record.state for record in study.records()] == ["waiting"]
    for attempt in (1, 2, 3):
        claim = study.claim(1, f"worker {attempt}")
        assert claim.attempts == attempt
        watch = silent_watch(folder)
        study.requeue_lost(watch, "me")
        study.requeue_lost(watch, "me")
    (record,) = study.records()
    assert record.state == "failed"
    assert "3 workers" in record.reason
    assert study.claim(1, "me") is None


def test_a_torn_line_is_cut_and_a_corrupt_one_is_named(folder):
    study, journal = study_in(folder), folder / cluster.JOURNAL_FILE
    study.finish(study.claim(3, "me"), 1.0)
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"study')
    study = study_in(folder)
    study.finish(study.claim(3, "me"), 2.0)
    assert [record.value for record in study_in(folder).records()] == [1.0, 2.0]
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"nonsense\n", *lines[2:]]))
    with pytest.raises(UserError, match="corrupt in line 3"):
        study_in(folder)


def test_another_search_is_refused_with_its_differences(folder):
    other = cluster.SearchSettings(
        "shapes2d-quick",
        override(BASE, ["training.batch=32"]),
        parse_space(BASE, ["control.target=4:21", "optimiser.rate=1e-4:1e-2:log"]),
        "mig",
        "higher",
        "none",
    )
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        cluster.create_folder(folder, other)
    for words in (
        "objective is elbo there and mig here",
        "control.target is 4.0:20.0 there and 4.0:21.0 here",
        "training.batch is 64 there and 32 here",
    ):
        assert words in str(caught.value)
    cluster.create_folder(folder, SETTINGS)  # the same search may be joined
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / cluster.SETTINGS_FILE).write_text("{")
    with pytest.raises(UserError, match="is corrupt"):
        cluster.create_folder(folder, SETTINGS)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no search"):
        cluster.create_folder(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


_WORKER = """
import sys, time
from pathlib import Path
from controlvae.lab.cluster.search_workers import Worker
with Worker(Path(sys.argv[1]), beat=0.05) as worker:
    print(worker.name, flush=True)
    time.sleep(60)
"""


def test_a_killed_process_is_known_at_once_and_a_silent_machine_after_a_while(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        name, watch = process.stdout.readline().strip(), WorkerWatch(tmp_path)
        assert not watch.is_lost(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert watch.is_lost(name)
    finally:
        process.kill()
        process.stdout.close()
    # Of another machine only the beats are known, by this machine's clock.
    watch = WorkerWatch(tmp_path, lost_after=0.2)
    (tmp_path / "far").write_text('{"machine": "another", "beats": 1}')
    assert not watch.is_lost("far")
    time.sleep(0.3)
    (tmp_path / "far").write_text('{"machine": "another", "beats": 2}')
    assert not watch.is_lost("far")
    time.sleep(0.3)
    assert watch.is_lost("far")
    with Worker(tmp_path, beat=0.01) as worker:
        time.sleep(0.05)
        assert not WorkerWatch(tmp_path, lost_after=-1.0).is_lost(worker.name)
        assert json.loads((tmp_path / worker.name).read_text())["beats"] > 1
    assert not (tmp_path / worker.name).exists()


def test_without_optuna_the_pip_command_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "controlvae.lab.cluster.search_journal", raising=False)
    with pytest.raises(UserError, match=r"pip install 'controlvae\[search\]'"):
        import_journal()
