"""Slurm: settings of jobs, the queue, and the checks before anything is submitted."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.cluster.base import (
    MAX_REQUEUES,
    Cluster,
    Slots,
    import_submitit,
    launch_command,
    make_job,
    submitit_folder,
)
from controlvae.lab.cluster.preflight import token_file
from controlvae.lab.cluster.records import JobRecord
from controlvae.lab.cluster.slurm_commands import (
    ANSWER_SECONDS,
    ask_slurm,
    parse_partition,
    read_queue,
)
from controlvae.lab.cluster.speed import Speed, from_record
from controlvae.lab.config import Experiment
from controlvae.lab.config.serialization import to_dict

_MEASURE_SECONDS = 300  # kernels of a GPU are compiled first
_CHECK_SECONDS = 60  # for a node to become free and to answer
_SECONDS_BETWEEN_LOOKS = 5.0
_GONE_AFTER = 3  # looks at the queue without a job, before it counts as ended


@dataclass(frozen=True)
class Slurm(Cluster):
    """Jobs of a Slurm cluster, as arrays.

    Attributes:
        time: Time limit of a job, such as `90m`, `4h` or `1-00:00:00`. A job that needs more is
            requeued and resumes.
        partition: Partition, or None for the cluster's default.
        signal_delay: Seconds before the time limit at which the job saves and requeues itself.
        sbatch: Further parameters of `sbatch`, such as `{"account": "vae"}`.
    """

    time: str | float | None = "4h"
    partition: str | None = None
    signal_delay: int = 90
    sbatch: Mapping[str, Any] = field(default_factory=dict)

    name = "slurm"

    @property
    def signal_seconds(self) -> int:
        """Seconds between the signal to save and the time limit."""
        return min(self.signal_delay, super().signal_seconds)

    def require_ready(self, folder: Path, note: Callable[[str], None]) -> None:
        """Raise UserError if Slurm, the partition, the folder or the packages are not right."""
        import_submitit()
        name, allowed = self.partition_name(), self._partitions()[0]["limit"]
        if allowed is not None and 60.0 * (self.minutes or 0) > allowed:
            raise UserError(
                f"--time {self.time} is more than partition {name} allows; use --time "
                f"{allowed / 60:.0f}m or less: jobs that need more are requeued and resume"
            )
        with token_file(folder) as token:
            self._check_node(token, note)

    def job_gpus(self, device: str) -> int:
        """Return the number of GPUs of a job: one where the partition has GPUs."""
        if device == "cpu":
            return 0
        if self.gpus is not None:
            return self.gpus
        has_gpus = any(row["gpus"] for row in self._partitions())
        return 1 if has_gpus else 0

    def slots(self, gpus: int) -> Slots:
        """Return how many jobs the partition can run at the same time."""
        rows = self._partitions()
        total = 0
        for row in rows:
            per_node = row["gpus"] // gpus if gpus else row["cpus"] // (self.cpus or 1)
            total += row["nodes"] * per_node
        if total == 0:
            asked = f"{gpus} GPUs" if gpus else f"{self.cpus} cores"
            raise UserError(f"no node of partition {rows[0]['name']} has {asked}")
        unit = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else f"{self.cpus or 1} core(s)"
        words = f"partition {rows[0]['name']} has room for {total} jobs of {unit}"
        if self.array_limit is not None and self.array_limit < total:
            return Slots(self.array_limit, f"--array-limit {self.array_limit}")
        return Slots(total, words)

    def submit(self, root: Path, records: Sequence[JobRecord], gpus: int) -> None:
        """Submit an array of jobs."""
        submitit = import_submitit()
        executor = submitit.SlurmExecutor(
            submitit_folder(root), max_num_timeout=MAX_REQUEUES, python=launch_command()
        )
        more = {"requeue": True, **self.sbatch}
        settings: dict[str, Any] = {
            "job_name": f"controlvae-{root.absolute().name}",
            "time": self.minutes,
            "partition": self.partition,
            "cpus_per_task": self.cpus,
            "gpus_per_node": gpus or None,
            "array_parallelism": self.array_limit or len(records),
            "signal_delay_s": self.signal_seconds,
            "additional_parameters": more,
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        executor.update_parameters(nodes=1, ntasks_per_node=1, **settings)
        try:
            with executor.batch():
                jobs = [executor.submit(make_job(record)) for record in records]
        except (RuntimeError, subprocess.CalledProcessError) as error:
            reason = " ".join(str(error).split()) or "sbatch failed"
            raise UserError(f"Slurm refused the jobs: {reason}") from None
        for record, job in zip(records, jobs, strict=True):
            record.note_submission(self.name, job.job_id)

    def wait_for(self, records: Sequence[JobRecord], say: Callable[[str], None]) -> None:
        """Return when no job is in the queue any more."""
        numbers = {record.name: str(record.submission().get("job")) for record in records}
        before: dict[str, str] = {}
        missing = 0
        while missing < _GONE_AFTER:
            queue = read_queue() or {}
            states = {name: queue.get(number, "ended") for name, number in numbers.items()}
            missing = missing + 1 if set(states.values()) == {"ended"} else 0
            if states != before:
                counts = {state: list(states.values()).count(state) for state in states.values()}
                say(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
                before = states
            time.sleep(_SECONDS_BETWEEN_LOOKS if missing == 0 else 1.0)

    def partition_name(self) -> str:
        """Return the name of the chosen partition."""
        return str(self._partitions()[0]["name"])

    def gpu_type(self) -> str:
        """Return the type of the partition's GPUs as Slurm names it, such as `h200`, or nothing."""
        return next((row["gpu_type"] for row in self._partitions() if row["gpu_type"]), "")

    def measure(self, experiment: Experiment, root: Path | None, gpus: int) -> Speed | None:
        """Measure the training speed on a node, or return None if no node is free soon.

        Args:
            experiment: Experiment to train.
            root: Data folder that is searched first.
            gpus: GPUs of a job.
        """
        more = [f"--cpus-per-task={self.cpus or 1}"] + (["--gpus=1"] if gpus else [])
        request = {
            "experiment": to_dict(experiment),
            "data_root": None if root is None else str(root.absolute()),
            "device": "cuda" if gpus else "cpu",
        }
        module = [sys.executable, "-m", "controlvae.lab.cluster.speed"]
        try:
            done = self._srun([*more, *module], json.dumps(request), _MEASURE_SECONDS)
            return from_record(json.loads(done.stdout.splitlines()[-1]))
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            return None

    def _srun(
        self, words: Sequence[str], text: str, seconds: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on a node that becomes free soon."""
        minutes = math.ceil(seconds / 60) + 1
        start = ["srun", "--quiet", "--ntasks=1", "--nodes=1", f"--time={minutes}"]
        start += ["--job-name=controlvae", f"--immediate={ANSWER_SECONDS}"]
        start += [f"--partition={self.partition}"] if self.partition else []
        # A folder that the node lacks is no reason to stop before the check.
        start += ["--chdir=/", *words]
        inherited = [str(Path(path).absolute()) for path in _python_path()]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.cpus or 1)}
        if inherited:
            environment["PYTHONPATH"] = os.pathsep.join(inherited)
        return subprocess.run(
            start,
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=environment,
        )

    def _partitions(self) -> list[dict[str, Any]]:
        """Return name, nodes, cores and GPUs per node of the chosen partition.

        Raises:
            UserError: If there is no Slurm, it does not answer, or it has no such partition.
        """
        lines = ask_slurm("sinfo", "--noheader", "--format=%P|%D|%c|%G|%l")
        rows = [parse_partition(line) for line in lines]
        known = list(dict.fromkeys(row["name"] for row in rows))
        default = next((row["name"] for row in rows if row["default"]), None)
        wanted = self.partition or default
        if wanted is None:
            raise UserError(f"name a --partition; this cluster has {', '.join(known)}")
        chosen = [row for row in rows if row["name"] == wanted]
        if not chosen:
            raise UserError(f"no partition {wanted!r} on this cluster; it has {', '.join(known)}")
        return chosen

    def _check_node(self, token: Path, note: Callable[[str], None]) -> None:
        """Let a node look for the token and compare its packages, if one is free soon."""
        words = [sys.executable, "-m", "controlvae.lab.cluster.preflight", str(token)]
        try:
            done = self._srun(words, "", _CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            note("no node was free to check the folder and the packages: each job checks them")
            return
        answer = done.stdout.strip().splitlines()[-1:]
        if done.returncode == 0 and answer == ["ready"]:
            return
        if done.returncode == 2 and answer:
            raise UserError(answer[0])
        reason = " ".join(done.stderr.split())
        if "No such file" in reason or "ModuleNotFoundError" in reason or "not found" in reason:
            raise UserError(
                f"a node cannot run {sys.executable} with controlvae: {reason[-200:]}; install it "
                "in a folder that all nodes mount"
            )
        note(f"the folder and the packages were not checked on a node ({reason[-120:]})")


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
