"""A Slurm cluster of one node for tests, and waiting for what happens on it."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "cluster" / "slurm_node.sh"
ROOT = Path(__file__).parents[2]
TINY = [
    *("--set", "training.batch=16", "--set", "training.log_every=7", "--set", "data.images=256"),
    *("--set", "model.channels=(4,4,4)", "--set", "model.hidden=16", "--device", "cpu"),
]


class MissingSlurmError(Exception):
    """This machine cannot run Slurm. The message says why."""


class Node:
    """A running cluster.

    Args:
        folder: Folder of its configuration and logs.
        work: Folder in which commands run.
    """

    def __init__(self, folder, work):
        self.work = work
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
                ":"
            ),
            "OMP_NUM_THREADS": "1",
            "CONTROLVAE_CACHE": str(work / "cache"),
        }

    def run(self, *words, check=True):
        """Run a program next to the cluster."""
        done = subprocess.run(
            [*map(str, words)],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    def controlvae(self, *words, check=True):
        """Run a command of controlvae."""
        return self.run(sys.executable, "-m", "controlvae", *words, check=check)

    def jobs(self):
        """Return number and state of the jobs in the queue."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %T").stdout.splitlines()
        return dict(line.split() for line in lines)


@contextlib.contextmanager
def slurm_node(work, cores=2, prefix=()):
    """Start a cluster of one node, and stop it in the end.

    Args:
        work: Folder for its files and for runs.
        cores: Number of cores that Slurm counts.
        prefix: Words of a program that runs the node, such as `unshare`.
    """
    folder = work / "slurm"
    environment = {**os.environ, "CORES": str(cores), "NODE_PREFIX": " ".join(prefix)}
    done = subprocess.run(
        [str(SCRIPT), "start", str(folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        raise MissingSlurmError(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    try:
        yield Node(folder, work)
    finally:
        subprocess.run([str(SCRIPT), "stop", str(folder)], check=False)


def wait_until(what, seconds=180.0, every=0.5):
    """Wait until a function returns something true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(every)
    raise AssertionError(f"nothing within {seconds} s: {what.__name__}")
