"""Scheduling of many runs: grouped by what one engine can train, and trained group after group."""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from controlvae.errors import Diverged, RunError, UserError, shell_command
from controlvae.lab.config import Experiment
from controlvae.lab.engines.select import shared_settings
from controlvae.lab.runs.checkpoint import is_intact
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.logger import in_training
from controlvae.lab.training import runner
from controlvae.lab.training.run_setup import Plan, plan_seeds
from controlvae.lab.training.run_threads import recorded_threads
from controlvae.lab.training.trackers import require_tracker_per_run

_MAX_MODELS = 25  # side by side: more are not faster on the largest GPU


def seed_folders(
    experiment: Experiment,
    path: Path,
    seeds: int,
    command: str,
    option: str = "--run",
    code: str = "",
) -> list[RunFolder]:
    """Return the run folders of an experiment's seeds, and create those that are missing.

    Args:
        experiment: Experiment with the first seed.
        path: Folder that contains one folder per seed.
        seeds: Number of seeds.
        command: Shell command that repeats the runs.
        option: Option that selects another folder, for messages.
        code: File and name of user-supplied code.

    Raises:
        UserError: If an existing run has other settings.
    """
    # A single seed gets its own folder as well: more may be added later.
    planned = plan_seeds(experiment, path, seeds, always_nested=True)
    return create_folders(planned, command, option, code)


def create_folders(
    planned: Plan, command: str, option: str = "--run", code: str = ""
) -> list[RunFolder]:
    """Create the planned run folders that are missing, and return all of them.

    Args:
        planned: Experiments and their folders.
        command: Shell command that repeats the runs.
        option: Option that selects another folder, for messages.
        code: File and name of user-supplied code.

    Raises:
        UserError: If an existing run has other settings.
    """
    for one, folder in zip(planned.experiments, planned.folders, strict=True):
        try:
            if not folder.experiment_file.is_file():
                folder.create(one, command, option, code)
            elif _without_labels(folder.experiment()) != _without_labels(one):
                if folder.events() or in_training(folder):
                    raise UserError(
                        f"{folder.path} holds a run with other settings; "
                        f"choose another {option}, or delete it"
                    )
                # It never started, because its data was missing or did not fit.
                folder.write(one, command, code)
        except OSError as error:
            raise UserError(
                f"cannot create the run folder {folder.path}: {error.strerror}"
            ) from None
    return planned.folders


def runs_in(path: Path) -> list[RunFolder]:
    """Return the runs below a folder, which may be missing."""
    return find_runs(path) if path.exists() else []


def train_all(folders: Sequence[RunFolder], options: runner.RunOptions) -> None:
    """Train unfinished runs group by group until all are done or the time limit is reached.

    Raises:
        Interrupted: After Ctrl-C or SIGTERM. The runs can be resumed.
        RunError: If no run has a log because every group failed.
    """
    failures, _ = _run_groups(folders, options, "the same command", created_here=True)
    if failures and not any(folder.records() for folder in folders):
        raise failures[-1]


def resume_all(path: Path, options: runner.RunOptions) -> list[RunFolder]:
    """Resume the run at a path, or all runs below it, and return their folders.

    Runs that one engine can train go side by side. Other runs go group by group.

    Raises:
        Interrupted: After Ctrl-C or SIGTERM. The runs can be resumed.
        UserError: If some runs cannot be read or started. The others are trained first.
        RunError: If every group failed.
    """
    folders = find_runs(path)
    require_tracker_per_run(options.trackers, len(folders))
    failures: list[RunError | UserError] = []
    readable = _select_readable(folders, options, failures) if len(folders) > 1 else folders
    if not failures and (len(folders) == 1 or len(list(group_compatible(folders))) < 2):
        runner.resume_runs(folders, options)
        return folders
    command = shell_command("resume", path, *options.data_root_arguments)
    failed_groups, groups = _run_groups(readable, options, command)
    failures += failed_groups
    if any(isinstance(error, UserError) for error in failures):
        raise UserError(f"{len(failures)} of the runs in {path} failed; see the messages above")
    if failures and len(failures) == groups:
        raise RunError(f"all runs in {path} failed; see the messages above")
    return folders


class Group(NamedTuple):
    """Runs that one engine can train, and the step from which they resume."""

    step: int
    folders: list[RunFolder]


def group_compatible(folders: Sequence[RunFolder]) -> Iterator[Group]:
    """Group runs that one engine can train together, least advanced first.

    The runs of a group are equal up to seed and law, have the same number of CPU threads if that
    has been chosen, and are at the same step. A kill between two
    models' checkpoints leaves some of them ahead. Each model keeps two checkpoints, so those ahead
    still have the common step and return to it. A run that was stopped deliberately does not.
    """
    compatible: dict[str, dict[RunFolder, int]] = {}
    for folder in folders:
        if (step := runner.resume_step(folder)) is not None:
            settings = shared_settings(folder.experiment()), recorded_threads(folder)
            compatible.setdefault(str(settings), {})[folder] = step
    for steps in compatible.values():
        while steps:
            lowest = min(steps.values())
            members = [
                folder
                for folder, step in steps.items()
                if step == lowest or _can_return_to(folder, lowest)
            ]
            for start in range(0, len(members), _MAX_MODELS):
                yield Group(lowest, members[start : start + _MAX_MODELS])
            for folder in members:
                del steps[folder]


def _without_labels(experiment: Experiment) -> Experiment:
    return replace(experiment, name="", about="", paper="")


def _can_return_to(folder: RunFolder, step: int) -> bool:
    """Return True if a run was killed and has an intact checkpoint of this step."""
    last = next((event["event"] for event in reversed(folder.events())), None)
    return last not in ("stopped", "finished", "diverged") and is_intact(folder.checkpoints, step)


def _run_groups(
    folders: Sequence[RunFolder],
    options: runner.RunOptions,
    resume_command: str,
    created_here: bool = False,
) -> tuple[list[RunError | UserError], int]:
    """Train group after group until the time limit.

    A group that diverges does not stop the others. Neither does one that cannot start, unless the
    caller created the runs: then all of them lack the same thing. The groups are formed again after
    each one, because other processes may have trained some of the runs meanwhile.

    Returns the errors of the failed groups and the number of groups that were tried.
    """
    display, deadline = options.display, time.monotonic() + options.time_limit
    failures: list[RunError | UserError] = []
    waiting, tried = list(folders), 0
    while groups := list(group_compatible(waiting)):
        remaining, total = deadline - time.monotonic(), tried + len(groups)
        if remaining <= 0:
            display.status(
                f"no time left for {len(groups)} of {total} groups of runs; "
                f"resume with: {resume_command}"
            )
            break
        display.note(_describe_group(groups[0], tried + 1, total))
        members = groups[0].folders
        waiting = [folder for folder in waiting if folder not in members]
        tried += 1
        limited = replace(options, time_limit=remaining)
        try:
            runner.resume_runs(members, limited, resume_command, created_here)
        except (RunError, UserError) as error:
            if created_here and not isinstance(error, Diverged):
                raise
            display.note(str(error))
            failures.append(error.with_traceback(None))  # a traceback would keep the engine alive
        # An engine and its compiled steps refer to each other. The next group needs their memory.
        gc.collect()
    return failures, tried


def _describe_group(group: Group, number: int, total: int) -> str:
    names = ", ".join(dict.fromkeys(folder.experiment().name for folder in group.folders))
    count = len(group.folders)
    runs = f"{count} runs side by side" if count > 1 else "1 run"
    place = f"{number} of {total}: " if total > 1 else ""
    return f"{place}{names}: {runs}, from step {group.step:,}"


def _select_readable(
    folders: Sequence[RunFolder],
    options: runner.RunOptions,
    failures: list[RunError | UserError],
) -> list[RunFolder]:
    """Return the runs whose settings and checkpoints can be read. Report and collect the others."""
    readable = []
    for folder in folders:
        try:
            folder.experiment()
            runner.resume_step(folder)
            readable.append(folder)
        except UserError as error:
            options.display.note(str(error))
            failures.append(error)
    return readable
