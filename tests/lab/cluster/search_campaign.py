"""Kill the workers of a search again and again, and check that no trial is lost or trained twice.

    python tests/lab/cluster/search_campaign.py --trials 12 --workers 2 --kills 12

Workers are processes of `controlvae search` on one folder. One that has a trial is killed with
SIGKILL at a random moment, in training or evaluation, and another is started in its place. At the
end every trial has to have a value, its log has to equal that of an unbroken run byte for byte, and
no step may have been trained by two processes at once. A trial that has lost two workers is spared,
since the third loss ends it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from controlvae import lab
from controlvae.lab.cluster.search import SearchStudy
from controlvae.lab.cluster.search_settings import JOURNAL_FILE
from controlvae.lab.runs.folder import look_up

SETTINGS = {
    "training.steps": 1_500,
    "training.batch": 16,
    "training.log_every": 10,
    "data.images": 160,
    "model.channels": "(4,4,4)",
    "model.hidden": 16,
}


def start_worker(path: Path, trials: int, number: int) -> subprocess.Popen[bytes]:
    """Start a worker of the search."""
    words = [sys.executable, "-m", "controlvae", "search", "shapes2d-quick"]
    words += ["--objective", "ssim", "--trials", str(trials), "--run", str(path / "search")]
    words += ["--vary", "control.target=4:20", "--vary", "optimiser.rate=1e-3:1e-2:log"]
    words += ["--device", "cpu", "--threads", "1", "--checkpoint-every", "0.5s"]
    words += [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    with (path / f"worker-{number}.log").open("wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, env=os.environ)


def may_be_killed(path: Path, process: subprocess.Popen[bytes]) -> bool:
    """Return whether a worker has a trial, and the trial can lose one more."""
    if not (path / "search" / JOURNAL_FILE).exists():
        return False
    records = SearchStudy(path / "search", "higher").records()
    own = [r for r in records if f"-{process.pid}-" in r.worker and r.state == "running"]
    return bool(own) and all(record.attempts < 3 for record in own)


def run_campaign(path: Path, trials: int, workers: int, kills: int, seed: int) -> int:
    """Run the search to its end with kills. Return the number of workers that were killed."""
    chance, done, number = random.Random(seed), 0, workers
    processes = [start_worker(path, trials, n) for n in range(workers)]
    try:
        while any(process.poll() is None for process in processes):
            time.sleep(chance.uniform(1.0, 6.0))
            running = [n for n, process in enumerate(processes) if process.poll() is None]
            if not running or done >= kills:
                continue
            victim = chance.choice(running)
            if not may_be_killed(path, processes[victim]):
                continue
            os.kill(processes[victim].pid, signal.SIGKILL)
            processes[victim].wait()
            done += 1
            processes[victim] = start_worker(path, trials, number)
            number += 1
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    return done


def check(path: Path, trials: int, killed: int) -> None:
    """Raise AssertionError if a trial was lost, trained twice or changed by a kill."""
    records = SearchStudy(path / "search", "higher").records()
    assert len(records) == trials, len(records)
    assert {record.state for record in records} == {"finished"}, records
    resumed = restarted = 0
    for record in records:
        events = record.run.events()
        assert events[-1]["event"] == "finished", events
        steps = [e["step"] for e in events if e["event"] in ("started", "resumed")]
        assert steps == sorted(steps), events
        resumed += sum(event["event"] == "resumed" for event in events)
        restarted += sum(event["event"] == "started" for event in events) - 1
        assert record.value == look_up(record.run.metrics() or {}, "likeness.ssim")
        alone = path / "alone" / record.run.path.name
        plain = lab.train(
            record.run.experiment(), run=alone, device="cpu", threads=1, progress=False
        )
        assert record.run.log_file.read_bytes() == plain.folder.log_file.read_bytes(), record
    attempts = sum(record.attempts for record in records)
    print(
        f"{trials} trials finished with equal logs; {killed} workers killed, {attempts} attempts, "
        f"{resumed} resumed from a checkpoint, {restarted} from the beginning"
    )


def main() -> None:
    """Run the campaign in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        words = arguments.trials, arguments.workers, arguments.kills, arguments.seed
        killed = run_campaign(path, *words)
        check(path, arguments.trials, killed)


if __name__ == "__main__":
    main()
