"""Jobs of several ranks: rank 0 says what is trained, the others train it along."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from controlvae import __version__
from controlvae.errors import RunError, UserError
from controlvae.lab.config import CustomModel, Experiment
from controlvae.lab.config.digest import config_digest
from controlvae.lab.config.serialization import to_dict
from controlvae.lab.engines.ranked import follow
from controlvae.lab.ranks.group import (
    LostRanksError,
    RankGroup,
    digest_of,
    explain_lost_ranks,
    is_agreed,
    require_same,
)
from controlvae.lab.runs.folder import RunFolder, find_runs

_COMPARED_PARTS = ("data", "model", "objective", "control", "optimiser", "training")


class RankJob(NamedTuple):
    """Runs to train, as rank 0 announces them."""

    experiments: list[Experiment]
    folders: list[Path]
    sharded: bool = False


class RankEnd(NamedTuple):
    """End of all jobs, with the error that ended them on rank 0."""

    error: type[BaseException] | None = None
    message: str = ""


@contextmanager
def leading(group: RankGroup) -> Iterator[None]:
    """End the loops of the other ranks when this context ends, with the error that ends it.

    Args:
        group: Ranks of the job, of which this is rank 0.
    """
    end = RankEnd()
    lost = False
    try:
        yield
    except LostRanksError:
        lost = True
        raise
    except (UserError, RunError, KeyboardInterrupt) as error:
        end = RankEnd(type(error), str(error))
        raise
    except BaseException as error:
        end = RankEnd(RunError, f"rank 0 failed: {type(error).__name__}: {error}")
        raise
    finally:
        if not (group.is_alone or lost):
            with suppress(LostRanksError), explain_lost_ranks(group):
                dist.broadcast_object_list([end], src=0)


def announce(group: RankGroup, job: RankJob) -> None:
    """Let the other ranks begin with a job. Nothing happens for a single process.

    Args:
        group: Ranks of the job, of which this is rank 0.
        job: Runs to train.
    """
    if not group.is_alone:
        with explain_lost_ranks(group):
            dist.broadcast_object_list([job], src=0)


def follow_jobs(
    group: RankGroup,
    prepare: Callable[[RankJob], Any],
    planned: Sequence[Experiment] | None = None,
) -> list[RunFolder]:
    """Train along with rank 0 until it has no further job.

    Ctrl-C and SIGTERM are left to rank 0, which ends all ranks after the same step.

    Args:
        group: Ranks of the job.
        prepare: Function that returns the engine of a job on this rank.
        planned: Experiments that this rank was started with, to be compared with rank 0's.

    Returns:
        The folders of the runs, on the machine of rank 0.
    """
    folders: list[RunFolder] = []
    failure: Exception | None = None
    with _ignore_stop_signals():
        while not isinstance(job := _receive(group), RankEnd):
            try:
                require_same(group, describe_job(planned or job.experiments))
                folders += [RunFolder(path) for path in job.folders]
                follow(prepare(job), group)
            except LostRanksError:
                raise
            except Exception as error:
                if not is_agreed(error):
                    group.say_failure(" ".join(str(error).split()) or type(error).__name__)
                    raise
                failure = error  # rank 0 has it too, and may go on with another job
    if job.error is not None:
        raise failure or job.error(job.message)
    return folders


def _receive(group: RankGroup) -> RankJob | RankEnd:
    received: list[Any] = [None]
    with explain_lost_ranks(group):
        dist.broadcast_object_list(received, src=0)
    message: RankJob | RankEnd = received[0]
    return message


def describe_job(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Return what must be equal on all ranks before the first step, besides the data.

    Args:
        experiments: Experiments to train.
    """
    facts = {
        "controlvae": __version__,
        "torch": torch.__version__.partition("+")[0],
        "seeds": ", ".join(str(one.training.seed) for one in experiments),
    }
    plain = [to_dict(experiment) for experiment in experiments]
    for part in _COMPARED_PARTS:
        facts[f"{part} settings"] = digest_of([one[part] for one in plain])
    return facts


def check_ranks(experiment: Experiment, group: RankGroup, sharded: bool) -> None:
    """Raise UserError if an experiment does not fit the number of ranks.

    Args:
        experiment: Experiment to train.
        group: Ranks of the job.
        sharded: Shard the model over the ranks.
    """
    batch = experiment.training.batch
    if batch < group.size:
        raise UserError(
            f"training.batch is {batch}, fewer examples than the {group.size} ranks; "
            f"set it to {group.size} or more, or start fewer processes"
        )
    if not sharded:
        return
    if not isinstance(experiment.model, CustomModel):
        raise UserError("sharded=True is for user-supplied models; built-in ones fit on every rank")
    if experiment.training.validate_every:
        raise UserError(
            "sharded=True cannot validate while training; remove validation= and call "
            "lab.evaluate on the run"
        )


def find_started(group: RankGroup, run: Path | None, name: str) -> list[RunFolder]:
    """Return the runs that this job created before torchrun restarted its processes.

    Args:
        group: Ranks of the job.
        run: Run folder that the job was started with, or None.
        name: Name of the experiment, for a default folder.
    """
    if group.is_alone:
        return []
    runs = Path("runs")
    candidates = [run] if run is not None else [runs / name, *runs.glob(f"{name}-*")]
    started = {path: _read_started(path, group.job) for path in candidates}
    # A script that trains several runs creates them in the same order again.
    for path in sorted((p for p in started if started[p]), key=_creation_time):
        if path.absolute() not in _seen:
            _seen.add(path.absolute())
            return started[path]
    return []


_seen: set[Path] = set()  # runs that this process has begun or continued


def note_started(folders: Sequence[RunFolder]) -> None:
    """Remember the runs that this process begins, so that it does not take them for earlier ones.

    Args:
        folders: Folders of the seeds of one experiment.
    """
    path = folders[0].path if len(folders) == 1 else folders[0].path.parent
    _seen.add(path.absolute())


def _read_started(path: Path, job: str) -> list[RunFolder]:
    """Return the runs at a path if a job of this name created all of them."""
    with suppress(UserError):
        found = find_runs(path)
        if all(folder.manifest().get("job") == job for folder in found):
            return found
    return []


def _creation_time(path: Path) -> float:
    return min(folder.experiment_file.stat().st_mtime for folder in find_runs(path))


def require_same_experiments(folders: Sequence[RunFolder], planned: Sequence[Experiment]) -> None:
    """Raise UserError if a restarted job has other settings than the runs it created.

    Args:
        folders: Runs that the job created.
        planned: Experiments that it was started with now.
    """
    before = sorted(config_digest(folder.experiment()) for folder in folders)
    if before != sorted(config_digest(experiment) for experiment in planned):
        raise UserError(
            f"{folders[0].path} was created by this job with other settings; choose another --run"
        )


def explain_loss(error: LostRanksError, saved: int | None, resume: str) -> RunError:
    """Return an error that says which rank failed, and how to continue.

    Args:
        error: What rank 0 has noticed.
        saved: Step of the last checkpoint, or None without one.
        resume: Command that resumes the runs.
    """
    state = "nothing is saved yet" if saved is None else f"the run is saved at step {saved:,}"
    return RunError(f"{error}; {state}; continue with: {resume}")


@contextmanager
def _ignore_stop_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
