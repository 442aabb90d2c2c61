"""Six targets on a real Slurm, with every interruption that a cluster knows. Run by hand.

    python tests/cluster/slurm_campaign.py [FOLDER]

The time limit of a job is shorter than its run. In the middle a job is cancelled, one is requeued,
and the node is drained and resumed. In the end each log equals that of an unbroken run, byte for byte.
Takes about ten minutes on two cores, and needs root and the packages that `slurm_node.sh install`
installs.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from slurm_node import TINY, MissingSlurmError, slurm_node, wait_until

TARGETS = (12, 14, 16, 18, 20, 22)
STEPS = 3000
SWEEP = [
    *("sweep", "shapes2d-quick", "--vary", f"control.target={','.join(map(str, TARGETS))}"),
    *(*TINY, "--set", f"training.steps={STEPS}", "--checkpoint-every", "2s"),
]
JOBS = ["--cluster", "slurm", "--time", "1m", "--cpus", "1", "--per-job", "1"]


def say(line):
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def job_of(work, target):
    """Return the number of the newest job of a target's run."""
    newest = ""
    for file in sorted((work / "jobs").glob("job-*.json")):
        if "submitted" in file.name or file.name.count(".") > 1:
            continue
        if any(f"target={target}/seed-1" in pack for pack in json.loads(file.read_text())["packs"]):
            newest = json.loads(file.with_suffix(".submitted.json").read_text())["job"]
    return newest


def events(work):
    """Return how often each event is in the records of all jobs."""
    found = {}
    for file in (work / "jobs").glob("job-*.jsonl"):
        for line in file.read_text().splitlines():
            name = json.loads(line)["event"]
            found[name] = found.get(name, 0) + 1
    return found


def lines_of(work, target):
    log = work / f"target={target}" / "seed-1" / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def main():
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    base.mkdir(parents=True, exist_ok=True)
    with slurm_node(base, cores=3) as node:
        runs = base / "slurm-runs"
        submit = [*SWEEP, "--run", runs, *JOBS]
        print(node.controlvae(*submit).stdout, end="")
        wait_until(lambda: lines_of(runs, 12) > 40 and lines_of(runs, 14) > 40, 300)
        number = job_of(runs, 12)
        node.run("scancel", number)
        say(f"scancel {number}, the job of target 12, at log line {lines_of(runs, 12)}")
        number = job_of(runs, 14)
        node.run("scontrol", "requeue", number)
        say(f"scontrol requeue {number}, the job of target 14, at log line {lines_of(runs, 14)}")
        wait_until(lambda: lines_of(runs, 18) > 40, 300)
        host = node.run("hostname", "-s").stdout.strip()
        node.run("scontrol", "update", f"nodename={host}", "state=drain", "reason=campaign")
        say("node drained: " + node.run("sinfo", "--noheader", "--format=%T").stdout.strip())
        print(node.controlvae("status", runs).stdout, end="")
        wait_until(lambda: not any(s == "RUNNING" for s in node.jobs().values()), 300)
        say(f"no job runs: {node.jobs()}")
        node.run("scontrol", "update", f"nodename={host}", "state=resume")
        say("node resumed")
        again = node.controlvae(*submit)  # the cancelled job is submitted again, the others are not
        print(again.stdout, end="")
        wait_until(lambda: not node.jobs(), 1200, every=2)
        print(node.controlvae("status", runs).stdout, end="")
        say(f"events of the jobs: {events(runs)}")
        say("the same without a cluster and without an interruption")
        node.controlvae(*SWEEP, "--run", base / "unbroken")
        equal = []
        for target in TARGETS:
            name = f"target={target}/seed-1/log.jsonl"
            equal.append((runs / name).read_bytes() == (base / "unbroken" / name).read_bytes())
            say(f"log of target {target}: {'equal' if equal[-1] else 'DIFFERENT'}")
        print(node.controlvae(*submit).stdout, end="")  # all have ended: the summary
        counts = events(runs)
        assert all(equal)
        assert counts["requeued"] >= 3, counts  # by the time limit
        assert counts["stopped"] >= 2, counts  # by scancel and by scontrol requeue
        assert not counts.get("failed"), counts
        say(f"passed: {sum(equal)} of {len(equal)} logs are equal")


if __name__ == "__main__":
    try:
        main()
    except MissingSlurmError as error:
        sys.exit(f"skipped: {error}")
