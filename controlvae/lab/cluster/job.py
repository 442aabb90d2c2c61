"""Job that submitit runs on a node: it supervises the training processes.

Training is in separate processes, so that one that is killed or crashes is noticed and retried. On
the signal before a time limit or a preemption, training saves and ends, and submitit requeues the
job, which resumes from the checkpoints.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controlvae.lab.cluster.records import JobRecord, last_lines

_SECONDS_BETWEEN_LOOKS = 0.5
_MAX_IDLE_STARTS = 3  # starts that save no step, before the job gives up
_SECONDS_TO_REQUEUE = 5  # between SIGTERM and SIGUSR2, where a cluster sends both
_WRONG, _STOPPED = 2, 3  # exit statuses of `worker`, which is not imported: it needs torch


class TrainingJob:
    """Callable that trains the runs of one job record.

    Args:
        root: Folder of the runs.
        name: Name of the job record.
        failures: Number of starts that have failed.
        idle_starts: Number of starts in a row that have saved no step.
    """

    def __init__(self, root: str, name: str, failures: int = 0, idle_starts: int = 0) -> None:
        self.root, self.name = root, name
        self.failures, self.idle_starts = failures, idle_starts

    def __call__(self) -> str:
        """Train until all runs have ended. Return the outcome."""
        record = JobRecord(Path(self.root), self.name)
        spec = record.spec()
        if record.is_cancelled():
            record.log("cancelled")
            return "cancelled"
        before = _saved_steps(record)
        output = record.output_file.stat().st_size if record.output_file.exists() else 0
        record.log("started", host=socket.gethostname(), process=os.getpid(), step=before)
        training = _Training(record, len(spec.packs), spec.limit)
        statuses = training.wait()
        after = _saved_steps(record)
        if after > before:
            self.idle_starts = 0
        elif spec.limit is None or training.seconds() > spec.limit / 2:
            self.idle_starts += 1  # a signal that came much too early is no fault of the job
        if not any(statuses):
            record.log("ended", step=after)
            return "ended"
        if training.cancelled or record.is_cancelled():
            record.log("cancelled", step=after)
            return "cancelled"
        if training.requeue_requested():
            if self.idle_starts >= _MAX_IDLE_STARTS:
                reason = f"no step was saved in {self.idle_starts} starts: allow more --time"
                return self._give_up(record, [reason])
            record.log("requeued", step=after)
            return self._requeue(training)
        if training.signals or all(status in (0, _STOPPED) for status in statuses):
            # Slurm requeues the job if an administrator or its preemption asked for that.
            record.log("stopped", step=after)
            sys.exit(128 + signal.SIGTERM)
        return self._retry_or_give_up(record, training, statuses, output)

    def checkpoint(self) -> Any:
        """Return the submission that continues this one. submitit calls it to requeue the job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(TrainingJob(self.root, self.name, self.failures, self.idle_starts))

    def _retry_or_give_up(
        self, record: JobRecord, training: "_Training", statuses: list[int], output: int
    ) -> str:
        lines = last_lines(record.output_file, start=output) or [_describe(statuses)]
        if not {1, _WRONG} & set(statuses):
            lines.append(_describe(statuses))  # killed, so its last line is no explanation
        retries = record.spec().retries
        if _WRONG in statuses or self.failures >= retries:
            return self._give_up(record, lines)
        self.failures += 1
        record.log("retrying", lines=lines, failures=self.failures, retries=retries)
        return self._requeue(training)

    def _give_up(self, record: JobRecord, lines: list[str]) -> str:
        record.log("failed", lines=lines, failures=self.failures + 1)
        raise RuntimeError("; ".join(lines))

    def _requeue(self, training: "_Training") -> str:
        """Let submitit save this object and requeue the job. Does not return."""
        training.submitit_handler(signal.SIGUSR2, None)
        return "requeued"


class _Training:
    """Training processes of one start, and the signals that the job has received."""

    def __init__(self, record: JobRecord, packs: int, limit: float | None) -> None:
        self.record, self.limit, self.signals = record, limit, set[int]()
        self.began = time.monotonic()
        self.cancelled = False
        self.submitit_handler: Callable[[int, Any], Any] = signal.getsignal(  # type: ignore[assignment]
            signal.SIGUSR2
        )
        for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)
        cards = _visible_gpus()
        with record.output_file.open("ab") as output:
            self.processes = [
                subprocess.Popen(
                    _worker_command(record, pack),
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    env=_environment(cards, pack),
                )
                for pack in range(packs)
            ]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})  # see `launch_command`

    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self.began

    def wait(self) -> list[int]:
        """Wait for all processes, and return their exit statuses."""
        while any(process.poll() is None for process in self.processes):
            if not self.cancelled and self.record.is_cancelled():
                self.cancelled = True
                self._forward(signal.SIGTERM)
            late = self.limit is not None and self.seconds() > self.limit
            if late and signal.SIGUSR2 not in self.signals:
                self._forward(signal.SIGUSR2)  # the signal of the cluster was lost
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return [process.returncode for process in self.processes]

    def requeue_requested(self) -> bool:
        """Return True if the cluster asks to requeue. SIGTERM may come shortly before."""
        deadline = time.monotonic() + _SECONDS_TO_REQUEUE
        while self.signals and signal.SIGUSR2 not in self.signals and time.monotonic() < deadline:
            time.sleep(0.1)
        return signal.SIGUSR2 in self.signals

    def _forward(self, number: int, _frame: object = None) -> None:
        self.signals.add(number)
        for process in getattr(self, "processes", ()):
            if process.poll() is None:
                process.send_signal(number)


def _worker_command(record: JobRecord, pack: int) -> list[str]:
    module = "controlvae.lab.cluster.worker"
    return [sys.executable, "-m", module, str(record.root), record.name, str(pack)]


def _visible_gpus() -> list[str]:
    return [card for card in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if card]


def _environment(cards: list[str], pack: int) -> dict[str, str]:
    """Return the environment of a training process, with one of the job's GPUs."""
    if len(cards) <= 1:
        return dict(os.environ)
    return {**os.environ, "CUDA_VISIBLE_DEVICES": cards[pack % len(cards)]}


def _saved_steps(record: JobRecord) -> int:
    """Return the sum of the newest checkpoints' steps. Checkpoints are counted, not read."""
    steps = 0
    for run in record.paths():
        names = [path.name for path in (run / "checkpoint").glob("step-*")]
        steps += max((int(name.removeprefix("step-")) for name in names), default=0)
    return steps


def _describe(statuses: list[int]) -> str:
    status = next(status for status in statuses if status)
    if status < 0:
        return f"the training process was killed by {signal.Signals(-status).name}"
    return f"the training process ended with status {status}"
