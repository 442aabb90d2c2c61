"""Fresh seeds at full length: detached training, evaluation, packing and the report."""

import csv
import gzip
import importlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from controlvae.lab.runs import checkpoint
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training

ROOT = Path(__file__).parents[2]
TINY = (
    *("--set", "data.images=64", "--set", "model.channels=(4,4,4)", "--set", "model.hidden=16"),
    *("--set", "training.batch=4", "--device", "cpu", "--images", "64", "--workers", "1"),
    *("--steps", "1000000", "--log-every", "5", "--snapshot", "10", "--checkpoint-every", "1"),
)


@pytest.fixture
def benchmark(monkeypatch):
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def wait_for(condition, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_training_outlives_its_command_and_is_stopped_and_packed(
    tmp_path, benchmark, monkeypatch, capsys
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runs, packed, again = tmp_path / "runs", tmp_path / "packed", tmp_path / "again"
    stacks = ("shapes2d-quick:301-302:1",)  # two processes
    folders = [RunFolder(runs / "shapes2d-quick" / f"seed-{seed}") for seed in (301, 302)]
    words = [str(ROOT / "benchmarks" / "fresh_seeds.py"), "full", str(runs), *stacks, *TINY]
    subprocess.run([sys.executable, *words, "--seconds", "0"], timeout=300, check=True)
    try:
        wait_for(lambda: all(folder.last_record() for folder in folders))
        assert all(in_training(folder) for folder in folders)
    finally:
        options = ["--seconds", "1", "--stop", "--pack", str(packed), "--weights"]
        monkeypatch.setattr(sys, "argv", [*words, *options])
        benchmark("fresh_seeds").main()
    assert "2 runs, 2 measured, 2 scored, 2 with weights" in capsys.readouterr().out
    events = folders[0].events()
    names = [event["event"] for event in events]
    assert (names[0], names[-1]) == ("started", "stopped")
    assert "resumed" not in names  # the second command found the process of the first
    content = json.loads(gzip.decompress((packed / "runs.json.gz").read_bytes()))
    run = content[0]
    assert run["gpu"]["step"] == events[-1]["step"]
    assert set(run["snapshots"]) == {"10"}
    assert {"dci", "sap", "factor_vae_score"} <= set(run["cpu"])
    benchmark("fresh_seeds_pack").unpack_runs(packed, again)
    original, _ = checkpoint.load_latest(folders[0].checkpoints)
    copy, _ = checkpoint.load_latest(again / "shapes2d-quick" / "seed-301" / "checkpoint")
    assert copy.step == original.step
    assert all(torch.equal(value, original.tensors[name]) for name, value in copy.tensors.items())


def test_dead_trainer_is_started_again_a_limited_number_of_times(tmp_path, benchmark, monkeypatch):
    watch = benchmark("fresh_seeds_watch")
    monkeypatch.setattr(watch, "SECONDS_BETWEEN_STARTS", -1.0)
    starts = []

    def start():
        starts.append(1)
        return SimpleNamespace(poll=lambda: 1)

    trainer = watch.Trainer("one", [RunFolder(tmp_path)], start, tmp_path / "log.txt")
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    assert not watch.keep_training([trainer], 0.05, steps=100)
    assert len(starts) == watch.MAX_STARTS


def test_progress_line_has_speed_and_remaining_time(benchmark):
    describe = benchmark("fresh_seeds_watch").describe
    trainers = [SimpleNamespace(name=name, folders=[None] * 5) for name in "ab"]
    line = describe(trainers, 2_000, (10.0, [100, 100]), (20.0, [1_000, 600]))
    assert line == "20 s: a 1,000, b 600; 700 seed-steps/s, 28 s left"


def test_weights_are_grouped_by_size(benchmark, monkeypatch):
    pack = benchmark("fresh_seeds_pack")
    monkeypatch.setattr(pack, "MAX_BYTES", 100)
    models = ((str(number), {"w": torch.zeros(10)}) for number in range(5))
    assert [list(group) for group in pack.group_by_size(models)] == [["0", "1"], ["2", "3"], ["4"]]


def packed_run(preset, seed, mig, separated):
    nats = [1.0, 0.98 if separated else 0.5, 0.0 if separated else 0.4, *[0.0] * 7]
    log = [
        {"step": step, "kl": 18.0, "beta": 1.5, "reconstruction": 14.0, "kl_per_latent": nats}
        for step in range(500, 1_500_001, 500)
    ]
    gpu = {"step": 1_500_000, "images": 737_280, "mig": {"score": mig}, "kl_per_latent": nats}
    return {
        "preset": preset,
        "seed": seed,
        "log": log,
        "gpu": {**gpu, "reconstruction": 14.0},
        "cpu": {},
        "snapshots": {"100000": {"mig": {"score": 0.165 if separated else 0.1}}},
    }


def test_report_of_full_length_runs(tmp_path, benchmark, monkeypatch, capsys):
    pytest.importorskip("scipy")
    report = benchmark("fresh_seeds_full_report")
    shutil.copy(ROOT / "results" / "disentangling" / "fresh-seeds.csv", tmp_path)
    content = [
        packed_run(preset, seed, mig, mig > 0.3)
        for preset, scores in zip(report.METHODS, ([0.55, 0.2, 0.54], [0.57, 0.58]), strict=True)
        for seed, mig in enumerate(scores, start=301)
    ]
    packed = tmp_path / "runs.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(content).encode()))
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--packed", str(packed), "--page"])
    report.main()
    assert "failed_mig: 1 (0.8 to 90.6 %) 302" in capsys.readouterr().out
    page = (tmp_path / "fresh-seeds-full.md").read_text()
    assert "S < 0.85 at step 60,000 finds 1 of 1 runs" in page
    assert "| KL = 18 | 301–303 | 1,500,000 | 1 of 3 | 0.430" in page
    with (tmp_path / "fresh-seeds-full.csv").open() as file:
        failed = [row["seed"] for row in csv.DictReader(file) if row["failed_mig_100000"] == "1"]
    assert failed == ["302"]
    logs = json.loads(gzip.decompress((tmp_path / "fresh-seeds-full-logs.json.gz").read_bytes()))
    steps = [line["step"] for line in logs[0]["log"]]
    assert len(steps) <= 204
    assert {60_000, 100_000, 1_500_000} <= set(steps)
    assert (tmp_path / "fresh-seeds-full.png").stat().st_size > 10_000
