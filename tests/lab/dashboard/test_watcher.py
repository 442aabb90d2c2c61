"""The watcher behind all event streams: many runs, linked runs, changes, shared logs and marks."""

import asyncio
import importlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from dashboards import events, get, served, train_two

from controlvae.lab.dashboard import run_list
from controlvae.lab.dashboard.run_list import RunList, find_runs_below
from controlvae.lab.dashboard.watcher import Watcher
from controlvae.lab.runs.folder import find_runs

COUNT = 300
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_two(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def many(trained, tmp_path_factory):
    """Return a folder of 300 runs."""
    root = tmp_path_factory.mktemp("many")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        make_runs = importlib.import_module("many_runs").make_runs
    make_runs(trained / "some" / "ended", root, COUNT, lines=500)
    return root


def cpu_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_event(address, wanted, **parameters):
    """Return the seconds until an event of a kind comes, and its content."""
    began = time.monotonic()
    with get(address, "/events", **parameters) as stream:
        content = next(content for kind, content in events(stream) if kind == wanted)
    return time.monotonic() - began, content


def test_300_runs_are_listed_fast_and_a_chosen_one_is_shown_at_once(many):
    with served(many) as (address, process):
        before = cpu_seconds(process)
        _, content = first_event(address, "runs")
        first_cpu = cpu_seconds(process) - before
        assert len(content["runs"]) == COUNT
        assert not [run for run in content["runs"] if "error" in run]
        assert first_cpu < 2  # the wall time of a busy machine says nothing

        version, waits = content["version"], []
        for number in range(6):
            name = f"group-{number}/seed-{number + 1}"
            seconds, log = first_event(address, "log", run=name, version=version)
            waits.append(seconds)
            assert len(log["columns"]["step"]) == 500
        assert sorted(waits)[len(waits) // 2] < 0.5, waits

        with get(address, "/events", version=version) as stream:
            # It reads the warnings of all runs first.
            deadline, idle = time.monotonic() + 90, 1.0
            while idle > 0.1 and time.monotonic() < deadline:
                began, before = time.monotonic(), cpu_seconds(process)
                time.sleep(4)
                idle = (cpu_seconds(process) - before) / (time.monotonic() - began)
            assert stream.status == 200
        assert idle <= 0.1  # of one core


def test_linked_runs_are_found_once_as_everywhere_else(trained, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(trained / "some" / "ended", elsewhere / "run")
    root = tmp_path / "runs"
    shutil.copytree(trained / "some", root / "some")
    (root / "linked").symlink_to(elsewhere / "run")
    (root / "again").symlink_to(elsewhere / "run")
    (root / "cycle").symlink_to(root)
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    found = find_runs_below(root)
    assert {folder.path for folder in found.values()} == {run.path for run in find_runs(root)}
    assert len(found) == 3
    assert {run["state"] for run in RunList(root).refresh()} == {"finished", "stopped"}


async def collect(watcher, names, version, seconds):
    """Return the events that a page gets within a time."""
    received = []

    async def listen():
        async for kind, content in watcher.changes(names, version):
            received.extend([(kind, content)] if kind else [])

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listen(), seconds)
    return received


def test_a_page_gets_what_has_changed_since_its_version(trained, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(trained / "some", root)

    async def watch():
        watcher = Watcher(root, lambda: False)
        received = await collect(watcher, [], "", 6)
        assert [kind for kind, _ in received] == ["runs", "changes"]
        assert any("not finished" in line for line in received[1][1]["runs"][0]["warnings"])
        version = received[1][1]["version"]
        assert await collect(watcher, [], version, 2) == []
        assert (await collect(watcher, [], "another-3", 2))[0][0] == "runs"
        assert (await collect(watcher, [], "9" * 40, 2))[0][0] == "runs"

        (root / "stopped" / "request.json").write_text('{"target": 9}')
        shutil.copytree(root / "ended", root / "new")
        shutil.rmtree(root / "ended")
        received = await collect(watcher, [], version, 4)
        assert {kind for kind, _ in received} == {"changes"}
        changed = {run["run"] for _, content in received for run in content["runs"]}
        removed = [name for _, content in received for name in content["removed"]]
        assert (changed, removed) == ({"stopped", "new"}, ["ended"])

    asyncio.run(watch())


def test_all_pages_share_one_reader(trained, tmp_path, monkeypatch):
    root = tmp_path / "runs"
    shutil.copytree(trained / "some", root)
    refreshes, reads = [], []
    refresh, read = RunList.refresh, run_list.summarise_run
    monkeypatch.setattr(
        RunList, "refresh", lambda *args: refreshes.append(time.monotonic()) or refresh(*args)
    )
    monkeypatch.setattr(
        run_list, "summarise_run", lambda name, *args: reads.append(name) or read(name, *args)
    )

    async def watch():
        watcher = Watcher(root, lambda: False)
        pages = [collect(watcher, ["ended"], "", 2.5) for _ in range(20)]
        for received in await asyncio.gather(*pages):
            kinds = [kind for kind, _ in received if kind != "changes"]  # those are warnings
            assert sorted(kinds) == ["log", "marks", "runs"]
        assert sorted(reads) == ["ended", "stopped"]  # one per run, however many pages there are
        assert len(refreshes) < 12
        before = len(refreshes)
        await asyncio.sleep(2)
        assert len(refreshes) <= before + 1  # it rests when the last page has gone

    asyncio.run(watch())


def test_appended_and_rewritten_logs_reach_every_page(trained, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(trained / "some", root)
    log = root / "ended" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)

    async def watch():
        watcher = Watcher(root, lambda: False)
        log.write_text("".join(lines[:6]))
        pages = [asyncio.create_task(collect(watcher, ["ended"], "", 6)) for _ in range(2)]
        await asyncio.sleep(2)
        with log.open("a") as file:
            file.writelines(lines[6:])
        await asyncio.sleep(2)
        log.write_text("".join(lines[:3]))  # resumed from an earlier step
        for page in pages:
            received = [content for kind, content in await page if kind == "log"]
            steps = [5 * (line + 1) for line in range(12)]
            assert [(each["reset"], each["columns"]["step"]) for each in received] == [
                (True, steps[:6]),
                (False, steps[6:]),
                (True, steps[:3]),
            ]

    asyncio.run(watch())


def test_long_logs_are_thinned_for_new_and_old_pages(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("controlvae.lab.dashboard.log_tail._MAX_NUMBERS", 1)
    monkeypatch.setattr("controlvae.lab.dashboard.log_tail._MIN_POINTS", 10)
    root = tmp_path / "runs"
    shutil.copytree(trained / "some" / "ended", root / "ended")
    log = root / "ended" / "log.jsonl"
    record = json.loads(log.read_text().splitlines()[0])
    lines = [json.dumps(record | {"step": step}) + "\n" for step in range(1, 101)]

    async def watch():
        watcher = Watcher(root, lambda: False)
        log.write_text("".join(lines[:15]))
        page = asyncio.create_task(collect(watcher, ["ended"], "", 5))
        await asyncio.sleep(2)
        log.write_text("".join(lines))
        shown = []
        for kind, content in await page:
            if kind == "log":
                shown = [*([] if content["reset"] else shown), *content["columns"]["step"]]
        assert shown[-1] == 100
        assert len(shown) <= 20
        (fresh,) = [c for kind, c in await collect(watcher, ["ended"], "", 2) if kind == "log"]
        assert fresh["columns"]["step"][-1] == 100
        assert len(fresh["columns"]["step"]) <= 10

    asyncio.run(watch())


def test_marks_tell_what_happened(trained, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(trained / "some", root)
    events_file = root / "ended" / "events.jsonl"

    async def watch():
        watcher = Watcher(root, lambda: False)
        page = asyncio.create_task(collect(watcher, ["ended"], "", 4))
        await asyncio.sleep(1.5)
        moved = {"event": "target moved", "step": 70, "target": 20.0}
        stuck = {"event": "target out of reach", "step": 90, "target": 20.0, "kl": 12.8, "beta": 1}
        with events_file.open("a") as file:
            file.write(json.dumps(moved) + "\n" + json.dumps(stuck) + "\n")
        before, after = [content for kind, content in await page if kind == "marks"]
        assert before["reset"] is after["reset"] is True
        names = [mark["event"] for mark in before["marks"]]
        assert names[0] == "started"
        assert names[-2:] == ["saved", "finished"]
        assert "threads" not in names
        texts = [(mark["kind"], mark["step"], mark["text"]) for mark in after["marks"][-2:]]
        assert texts == [
            ("target", 70, "target moved to 20 nats"),
            ("warning", 90, "target 20 out of reach: KL 12.8 with β at 1"),
        ]
        assert after["marks"][: len(names)] == before["marks"]

    asyncio.run(watch())
