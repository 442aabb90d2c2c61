"""Two processes that race for runs, as on two machines whose locks do not see each other."""

import contextlib
import json
import os
import random
import signal
import time
from unittest import mock

from controlvae.lab.config import override, preset
from controlvae.lab.runs import claim, claim_files, logger
from controlvae.lab.runs.claim import RunInUseError
from controlvae.lab.runs.folder import RunFolder

LINES = 5  # of the log of a run
RUNS = 3  # of a round
EXPERIMENT = override(preset("shapes2d-quick"), ["training.steps=5"])


def race(folder, machine, kill_share=0.0):
    """Train runs in any order until all have ended. Locks are switched off: claims decide alone.

    Args:
        folder: Folder of the runs.
        machine: Name of the machine that this process pretends to be on.
        kill_share: How often this process kills itself in the middle of a run.
    """
    name = f"{machine} boot-of-{machine}"
    with (
        mock.patch.object(logger, "_lock_file", return_value=False),
        mock.patch.object(claim, "this_machine", return_value=name),
        mock.patch.object(claim_files, "this_machine", return_value=name),
    ):
        runs = [RunFolder(folder / f"run-{number}") for number in range(RUNS)]
        while waiting := [run for run in runs if not run.has_ended()]:
            run = random.choice(waiting)
            if not claim_files.may_take_over(run.claims):
                time.sleep(0.001)
                continue
            with contextlib.suppress(RunInUseError):
                _train(run, machine, kill_share)


def _train(run, machine, kill_share):
    log = logger.RunLogger(run)
    try:
        if run.has_ended():
            return
        inside = run.path / "inside"
        if inside.exists():  # of a process that was killed: it must not live
            owner = int(inside.read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner, 0)
                (run.path / "overlap").write_text(f"{owner} and {os.getpid()}")
        inside.write_text(str(os.getpid()))
        log.rewind(0)
        log.event("started", step=0, by=machine)
        for step in range(LINES):
            log.record({"step": step + 1, "kl": 0, "beta": 0, "reconstruction": 0, "by": machine})
            if random.random() < kill_share / LINES:
                os.kill(os.getpid(), signal.SIGKILL)
        inside.unlink()
        log.event("finished", step=LINES, by=machine)
    finally:
        log.close()


def run_rounds(folder, rounds, kill_every=0, lease=1.0):
    """Let two processes race, and return what happened.

    Args:
        folder: Folder for the runs of all rounds.
        rounds: Number of rounds.
        kill_every: In every so many rounds one of the processes may be killed.
        lease: Lease of the claims in seconds.

    Returns:
        Counts of runs, of runs trained twice, lost, or by two at a time, of kills, and of wins.
    """
    counts = dict.fromkeys(("runs", "twice", "lost", "overlap", "kills", "a", "b"), 0)
    with mock.patch.dict(os.environ, {claim.LEASE_VARIABLE: str(lease)}):
        for number in range(rounds):
            path = folder / f"round-{number:04d}"
            for index in range(RUNS):
                RunFolder(path / f"run-{index}").create(EXPERIMENT, "race")
            share = 0.5 if kill_every and number % kill_every == 0 else 0.0
            children = [_fork(path, "a", share), _fork(path, "b", 0.0)]
            for child in children:
                _, status = os.waitpid(child, 0)
                counts["kills"] += os.WIFSIGNALED(status)
                assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
            for index in range(RUNS):
                _count(RunFolder(path / f"run-{index}"), counts)
    return counts


def _fork(path, machine, kill_share):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        random.seed(os.getpid())
        race(path, machine, kill_share)
        status = 0
    finally:
        os._exit(status)


def _count(run, counts):
    counts["runs"] += 1
    events = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    finished = [event["by"] for event in events if event["event"] == "finished"]
    authors = [json.loads(line)["by"] for line in run.log_file.read_text().splitlines()]
    counts["lost"] += not finished
    counts["twice"] += len(finished) > 1 or (bool(finished) and authors != finished * LINES)
    counts["overlap"] += (run.path / "overlap").exists()
    for name in finished[:1]:
        counts[name] += 1
