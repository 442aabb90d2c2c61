"""Commands of Slurm: the queue, the partitions, and cancelling jobs."""

import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.base import parse_slurm_time, submitit_folder
from controlvae.lab.cluster.records import JobRecord, last_lines

ANSWER_SECONDS = 30  # of Slurm's commands


def ask_slurm(*words: str) -> list[str]:
    """Run a command of Slurm and return the lines that it prints.

    Raises:
        UserError: If there is no Slurm on this machine, or it does not answer.
    """
    if shutil.which(words[0]) is None:
        raise UserError(
            f"no Slurm on this machine: {words[0]} is not in PATH; submit from a login node, or "
            "use --cluster local"
        )
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"Slurm does not answer: {words[0]} took {ANSWER_SECONDS} s") from None
    if done.returncode:
        reason = next(iter(done.stderr.strip().splitlines()[-1:]), f"status {done.returncode}")
        raise UserError(f"Slurm does not answer: {reason}")
    return [line for line in done.stdout.splitlines() if line.strip()]


def read_queue() -> dict[str, str] | None:
    """Return the states of the user's jobs by job number, or None if Slurm does not answer.

    Elements of arrays have numbers such as `12_3`. Jobs that have ended are missing.
    """
    try:
        lines = ask_slurm("squeue", "--noheader", "--array", "--me", "--format=%i|%T|%r")
    except UserError:
        return None
    queue = {}
    for line in lines:
        number, state, reason = line.split("|", 2)
        queue[number.strip()] = _QUEUE_STATES.get(state, state.lower())
        if state == "PENDING" and "Held" in reason:
            queue[number.strip()] = "held"
    return queue


_QUEUE_STATES = {
    "PENDING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_HOLD": "held",
    "CONFIGURING": "queued",
    "RUNNING": "running",
    "COMPLETING": "ending",
    "SUSPENDED": "suspended",
    "PREEMPTED": "queued",
}


def cancel_jobs(numbers: Iterable[str]) -> None:
    """Cancel jobs. Training saves before it ends."""
    if chosen := list(numbers):
        ask_slurm("scancel", *chosen)


def job_output(record: JobRecord) -> list[str]:
    """Return the last lines that Slurm or submitit printed for a job."""
    number = record.submission().get("job")
    return last_lines(submitit_folder(record.root) / f"{number}_0_log.err")


def parse_partition(line: str) -> dict[str, Any]:
    """Return a line of `sinfo` as values: cores and GPUs are those of a node."""
    name, nodes, cpus, gres, limit = line.strip().split("|", 4)
    gpus, gpu_type = 0, ""
    for resource in gres.split(","):  # such as gpu:h200:8(S:0-1)
        kind, *rest = resource.partition("(")[0].split(":")
        if kind == "gpu":
            gpus += int(rest[-1]) if rest and rest[-1].isdigit() else 1
            gpu_type = rest[0] if rest and not rest[0].isdigit() else gpu_type
    return {
        "name": name.rstrip("*"),
        "default": name.endswith("*"),
        "nodes": int(nodes),
        "cpus": int(cpus.rstrip("+")),
        "gpus": gpus,
        "gpu_type": gpu_type,
        "limit": parse_slurm_time(limit),  # None: infinite
    }
