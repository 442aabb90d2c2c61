"""Training process of a job: `python -m controlvae.lab.cluster.worker ROOT JOB GPU`.

It trains one pack of runs side by side, saves and stops on a signal, and returns a status that the
supervising process of the job understands.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from controlvae.errors import Diverged, Interrupted, RunError, UserError
from controlvae.lab.cluster.preflight import require_same_versions
from controlvae.lab.cluster.records import JobRecord, JobSpec
from controlvae.lab.runs.claim import RunInUseError
from controlvae.lab.runs.claim_files import may_take_over
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.logger import in_training
from controlvae.lab.training.runner import RunOptions, resume_runs, resume_step
from controlvae.lab.training.scheduler import group_compatible
from controlvae.lab.training.stopping import StopRequest

ENDED, FAILED, WRONG, STOPPED = 0, 1, 2, 3  # exit statuses
SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
_SECONDS_BETWEEN_LOOKS = 1.0  # at runs that another process trains


def train_pack(folders: Sequence[RunFolder], options: RunOptions) -> list[str]:
    """Train runs until all of them have ended, side by side where they are compatible.

    A run that another process trains is left to it. If that process dies, its claim ends and the
    run is trained here. A run that fails does not stop the others.

    Args:
        folders: Run folders.
        options: How to execute the runs.

    Returns:
        One line for each failure. A diverged model is none: its run has ended.

    Raises:
        Interrupted: On a stop request. The runs are saved.
    """
    failures: list[str] = []
    waiting = list(folders)
    while waiting := [folder for folder in waiting if _is_unfinished(folder, failures)]:
        free = [folder for folder in waiting if _is_free(folder)]
        if not free:
            time.sleep(_SECONDS_BETWEEN_LOOKS * random.uniform(0.5, 1.5))
            continue
        members = next(group_compatible(free)).folders
        try:
            resume_runs(members, options)
        except RunInUseError:  # another process was faster
            time.sleep(random.uniform(0, 0.2))
        except Diverged as error:
            options.display.note(str(error))
        except (RunError, UserError) as error:
            failures.append(str(error))
            options.display.note(str(error))
            waiting = [folder for folder in waiting if folder not in members]
        if options.stop is not None and options.stop.event.is_set():
            raise Interrupted("stopped")
    return failures


def _is_unfinished(folder: RunFolder, failures: list[str]) -> bool:
    try:
        return resume_step(folder) is not None
    except UserError as error:
        failures.append(str(error))
        return False


def _is_free(folder: RunFolder) -> bool:
    """Return True if no process seems to train a run. Claiming it decides."""
    return not in_training(folder) or may_take_over(folder.claims)


def work(record: JobRecord, gpu: int) -> int:
    """Train and evaluate one pack of a job, and return the exit status.

    Args:
        record: The job.
        gpu: Index of the pack.
    """
    stop = StopRequest()

    def request_stop(number: int, _frame: object) -> None:
        stop.event.set()
        if not stop.is_training:
            raise Interrupted(signal.Signals(number).name)

    for number in SIGNALS:
        signal.signal(number, request_stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})  # see `launch_command`
    try:
        spec = record.spec()
        require_same_versions(spec.versions)
        folders = [RunFolder(record.root / run) for run in spec.packs[gpu]]
        failures = train_pack(folders, _options(spec, stop))
        failures += _evaluate(spec, folders)
    except Interrupted:
        return STOPPED
    except (UserError, RunError) as error:
        print(f"controlvae: {error}", file=sys.stderr)
        return WRONG if isinstance(error, UserError) else FAILED
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    return FAILED if failures else ENDED


def _options(spec: JobSpec, stop: StopRequest) -> RunOptions:
    from dataclasses import replace

    options = RunOptions.parse(
        spec.device,
        None,
        spec.checkpoint_every,
        data_root=spec.data_root,
        threads="auto" if spec.threads is None else spec.threads,
    )
    return replace(options, stop=stop, trust_code=spec.trust_code)


def _evaluate(spec: JobSpec, folders: Sequence[RunFolder]) -> list[str]:
    """Evaluate the runs whose last step has not been evaluated. Return a line for each failure."""
    failures = []
    for folder in folders if spec.evaluate is not None else ():
        with suppress(UserError):
            if folder.evaluated_step() == resume_or_last_step(folder):
                continue
        words = [sys.executable, "-m", "controlvae", "evaluate", str(folder.path)]
        words += ["--device", spec.device, *(spec.evaluate or [])]
        if spec.data_root is not None:
            words += ["--data-root", spec.data_root]
        if spec.trust_code:
            words.append("--trust-code")
        done = subprocess.run(words, check=False, env=dict(os.environ))
        if done.returncode:
            failures.append(f"evaluation of {folder.path} failed with status {done.returncode}")
    return failures


def resume_or_last_step(folder: RunFolder) -> int | None:
    """Return the step of the last line of a run's log."""
    last = folder.last_record()
    return None if last is None else int(last["step"])


def main() -> int:
    """Run a pack of a job from the command line."""
    root, name, gpu = sys.argv[1:4]
    return work(JobRecord(Path(root), name), int(gpu))


if __name__ == "__main__":
    sys.exit(main())
