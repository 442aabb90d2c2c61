"""Options of a search, and the further processes that share its trials."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.lab.cluster.search_settings import Better
from controlvae.lab.runs.loaded import LoadedRun
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.runner import RunOptions

Objective = str | Callable[[LoadedRun], float]
_STOP_SECONDS = 120.0  # for other workers of this command to save their runs


class SearchOptions(NamedTuple):
    """Options of a search next to those of its runs.

    Attributes:
        objective: Name of the objective, or a function.
        better: Direction of a function.
        trials: Number of trials.
        workers: Number of processes that this call starts, including itself.
        prune: Column of the validation curve by which trials are pruned, "none" or "auto".
        fid: Images for FID and KID.
        seed: Seed of the sampler.
    """

    objective: Objective = "elbo"
    better: Better | None = None
    trials: int = 40
    workers: int = 1
    prune: str = "auto"
    fid: int | None = None
    seed: int = 0


def share_cores(options: RunOptions, workers: int) -> RunOptions:
    """Return the options with a number of threads that leaves cores to the other workers.

    Args:
        options: How this process executes runs.
        workers: Number of workers on this machine.
    """
    if workers == 1 or options.threads is not None or options.device.type != "cpu":
        return options
    return replace(options, threads=max(1, (os.cpu_count() or 1) // workers))


def worker_command(
    place: str,
    space: Sequence[str],
    overrides: Overrides,
    chosen: SearchOptions,
    options: RunOptions,
    path: Path,
) -> list[str]:
    """Return the command line of a further worker.

    Args:
        place: Preset, or place of the user's code.
        space: Varied settings, as texts.
        overrides: Settings to change in every trial.
        chosen: Options of the search.
        options: How this process executes runs.
        path: Folder of the search.
    """
    words: list[Any] = [sys.executable, "-m", "controlvae", "search", place]
    words += repeat_option("--vary", space) + repeat_option("--set", as_assignments(overrides))
    words += ["--objective", chosen.objective, "--trials", chosen.trials, "--prune", chosen.prune]
    words += ["--seed", chosen.seed, "--run", path, "--device", options.device]
    words += ["--checkpoint-every", f"{options.checkpoint_every}s"]
    words += [] if chosen.fid is None else ["--fid", chosen.fid]
    words += [] if options.threads is None else ["--threads", options.threads]
    words += [] if math.isinf(options.time_limit) else ["--time-limit", f"{options.time_limit}s"]
    return [*map(str, words), *options.data_root_arguments]


def repeat_option(option: str, values: Sequence[str]) -> list[str]:
    """Return the words of an option that is given once for each value."""
    return [word for value in values for word in (option, value)]


class OtherWorkers:
    """Further processes of this command, which share its search.

    Args:
        words: Command line of a worker.
        count: Number of processes.
        path: Folder of the search.
        options: How this process executes runs.
    """

    def __init__(self, words: list[str], count: int, path: Path, options: RunOptions) -> None:
        self._words, self._count, self._path = words, count, path
        self._display, self._device = options.display, options.device
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> None:
        for number in range(2, self._count + 2):
            words = list(self._words)
            words[words.index("--device") + 1] = self._device_of(number)
            log = self._path / f"worker-{number}.log"
            with log.open("ab") as file:
                # A separate session: Ctrl-C in the terminal reaches this process alone, which
                # then tells the others once.
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
            self._processes.append(process)
            self._display.note(f"worker {number} writes to {log}")

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            for process in self._processes if error is not None else ():
                process.terminate()  # it saves its run
            for number, process in enumerate(self._processes, start=2):
                status = process.wait(None if error is None else _STOP_SECONDS)
                if status and error is None:
                    log = self._path / f"worker-{number}.log"
                    self._display.note(f"worker {number} ended with status {status}; see {log}")
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in self._processes:
                process.terminate()
            raise

    def _device_of(self, number: int) -> str:
        """Return the device of a worker. Several GPUs are dealt out."""
        if self._device.type != "cuda" or self._device.index is not None:
            return str(self._device)
        from torch.cuda import device_count

        return f"cuda:{(number - 1) % device_count()}"
