"""Jobs on this machine: as many at a time as it has GPUs or cores for."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlvae.errors import Interrupted, UserError, shell_command
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
from controlvae.lab.cluster.records import FOLDER, POOL, JobRecord
from controlvae.lab.engines.threads import available_cores
from controlvae.lab.runs.claim import Claim, RunInUseError

_SECONDS_BETWEEN_LOOKS = 0.5
_NO_LIMIT = 60 * 24 * 365  # minutes
_SECONDS_TO_SAVE = 30


@dataclass(frozen=True)
class Local(Cluster):
    """Jobs on this machine, which are started as others end.

    The settings are those of `Cluster`. The process that submits the jobs starts them, so it waits.
    """

    name = "local"

    def require_ready(self, folder: Path, note: Callable[[str], None]) -> None:
        """Raise UserError if submitit is missing or the folder cannot be written."""
        import_submitit()
        with token_file(folder):
            pass

    def job_gpus(self, device: str) -> int:
        """Return the number of GPUs of a job: one where there are GPUs."""
        if device == "cpu":
            return 0
        return min(1, _gpu_count()) if self.gpus is None else self.gpus

    def slots(self, gpus: int) -> Slots:
        """Return the number of jobs at a time: one per GPU, or per number of cores."""
        cpus = self.cpus or 1
        if gpus:
            count, words = max(1, _gpu_count() // gpus), f"{_gpu_count()} GPUs here"
        else:
            count, words = max(1, available_cores() // cpus), f"{available_cores()} cores here"
        if self.array_limit is not None:
            return Slots(self.array_limit, f"--array-limit {self.array_limit}")
        return Slots(count, words)

    def submit(self, root: Path, records: Sequence[JobRecord], gpus: int) -> None:
        """Leave the jobs to `wait_for`, which starts them one after another."""
        for record in records:
            record.note_submission(self.name, "")

    def wait_for(self, records: Sequence[JobRecord], say: Callable[[str], None]) -> None:
        """Start the jobs, as many at a time as there are slots, until all have ended.

        Raises:
            Interrupted: After Ctrl-C. The runs are saved.
        """
        gpus = max(len(record.spec().packs) for record in records)
        if records[0].spec().device == "cpu":
            gpus = 0
        root = records[0].root
        try:
            claim = Claim.acquire(root / FOLDER / POOL)
        except RunInUseError:
            raise UserError(
                f"another process runs the jobs of {root}; see {shell_command('status', root)}"
            ) from None
        try:
            _Pool(self, gpus, say).run(list(records))
        finally:
            claim.release()


class _Pool:
    """Jobs of one process, started as slots become free."""

    def __init__(self, cluster: Local, gpus: int, say: Callable[[str], None]) -> None:
        self.cluster, self.gpus, self.say = cluster, gpus, say
        count, cards = cluster.slots(gpus).count or 1, _cards()
        # Each slot has its own GPUs. More slots than GPUs share them.
        self.free = [
            [cards[(gpus * slot + number) % len(cards)] for number in range(gpus)]
            for slot in range(count)
        ]
        self.running: list[tuple[JobRecord, Any, list[int]]] = []

    def run(self, waiting: list[JobRecord]) -> None:
        try:
            while waiting or self.running:
                while waiting and self.free:
                    self._start(waiting.pop(0))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                waiting += self._collect()
        except KeyboardInterrupt:
            self._stop()
            raise Interrupted("stopped; resume with the same command") from None

    def _start(self, record: JobRecord) -> None:
        if record.is_cancelled():
            return
        cards, minutes = self.free.pop(), self.cluster.minutes
        executor = import_submitit().LocalExecutor(
            submitit_folder(record.root), max_num_timeout=MAX_REQUEUES, python=launch_command()
        )
        executor.update_parameters(
            timeout_min=minutes or _NO_LIMIT,
            signal_delay_s=self.cluster.signal_seconds,
            gpus_per_node=len(cards),
            visible_gpus=cards,
        )
        # Ctrl-C in the terminal reaches this process alone, which lets the jobs save.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            job = executor.submit(make_job(record))
        finally:
            signal.signal(signal.SIGINT, previous)
        record.note_submission(self.cluster.name, job.job_id)
        self.running.append((record, job, cards))

    def _collect(self) -> list[JobRecord]:
        """Free the slots of jobs that have ended. Return those that have to start again."""
        again = []
        for entry in list(self.running):
            record, job, cards = entry
            if not job.done():
                continue
            self.running.remove(entry)
            self.free.append(cards)
            last: dict[str, Any] = next(iter(record.events()[-1:]), {"event": "started"})
            # submitit itself starts a requeued job again six times.
            if last["event"] in ("requeued", "retrying"):
                again.append(record)
                continue
            if last["event"] == "started":  # the supervising process was killed
                record.log("failed", lines=["the job was killed"])
                last = {"event": "failed"}
            self.say(f"{record.name} {last['event']}")
        return again

    def _stop(self) -> None:
        for _, job, _ in self.running:
            job._process.send_signal(signal.SIGTERM)  # submitit forwards it to the job
        deadline = time.monotonic() + _SECONDS_TO_SAVE
        while any(not job.done() for _, job, _ in self.running) and time.monotonic() < deadline:
            time.sleep(0.1)


def _cards() -> list[int]:
    """Return the numbers of the GPUs that this process may use."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(word.strip().isdigit() for word in words):
        return [int(word) for word in words]
    return list(range(_gpu_count()))


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()
