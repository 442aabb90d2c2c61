"""Many runs of one command: made where they are missing, grouped by what one engine can train, trained in turn."""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import typer

from controlvae.errors import Diverged, RunError, UserError, shell_command
from controlvae.lab.cli import training
from controlvae.lab.config import Experiment
from controlvae.lab.engines.select import shared_settings
from controlvae.lab.runs.checkpoint import is_intact
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.runs.logger import in_training

_MOST_AT_ONCE = 25  # models side by side: more gain nothing on the largest card


def seed_folders(
    experiment: Experiment, path: Path, seeds: int, command: str, option: str = "--run"
) -> list[RunFolder]:
    """The run folders of an experiment's seeds, made where they are missing; one that is there must be like it.

    `option` is the one by which the command at hand takes another place.
    """
    planned = training.plan_seeds(
        experiment, path, seeds, apart=True
    )  # a single one, too: more may join
    folders = []
    for one, folder in zip(planned.experiments, planned.folders, strict=True):
        try:
            if not folder.experiment_file.is_file():
                folder.create(one, command, option)
            elif _numbers_of(folder.experiment()) != _numbers_of(one):
                if folder.events() or in_training(folder):
                    raise UserError(
                        f"{folder.path} holds a run with other settings; choose another {option}, or delete it"
                    )
                folder.write(
                    one, command
                )  # it never began, because its data was not there or did not fit
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder.path}: {error.strerror}") from None
        folders.append(folder)
    return folders


def _numbers_of(experiment: Experiment) -> Experiment:
    """What decides its numbers, without the words."""
    return replace(experiment, name="", about="", paper="")


def runs_in(path: Path) -> list[RunFolder]:
    return find_runs(path) if path.exists() else []


def train_all(folders: Sequence[RunFolder], how: training.RunOptions) -> None:
    """Trains what is not at its end yet, group by group, until all is done or the time is up."""
    failed, _ = _in_turn(folders, how, again="the same command", made=True)
    if failed and not any(folder.records() for folder in folders):
        raise failed[-1]


def resume(path: Path, how: training.RunOptions) -> None:
    """Goes on with the run at a path, or with all runs below it: where one engine cannot, group by group."""
    folders = find_runs(path)
    failed: list[RunError | UserError] = []
    readable = _readable(folders, failed) if len(folders) > 1 else folders
    if not failed and (len(folders) == 1 or len(list(group_compatible(folders))) < 2):
        training.resume(folders, how)
        return
    more, tried = _in_turn(
        readable, how, again=shell_command("resume", path, *how.describe_data_root)
    )
    failed += more
    if any(isinstance(error, UserError) for error in failed):
        raise typer.Exit(2)
    if failed and len(failed) == tried:  # as was said of each
        raise typer.Exit(1)


class Group(NamedTuple):
    """Runs that one engine can train, and the step from which they go on."""

    step: int
    folders: list[RunFolder]


def group_compatible(folders: Sequence[RunFolder]) -> Iterator[Group]:
    """Groups of runs alike but in seed and control, and at the same step; of those alike the furthest behind first.

    Killed between two models' checkpoints, of which each keeps two, those ahead still have the one of those behind and
    go back to it. What was stopped where it stands does not.
    """
    alike: dict[str, dict[RunFolder, int]] = {}
    for folder in folders:
        if (step := training.resume_step(folder)) is not None:
            alike.setdefault(str(shared_settings(folder.experiment())), {})[folder] = step
    for stand in alike.values():
        while stand:
            behind = min(stand.values())
            together = [
                one for one, step in stand.items() if step == behind or _goes_back_to(one, behind)
            ]
            for start in range(0, len(together), _MOST_AT_ONCE):
                yield Group(behind, together[start : start + _MOST_AT_ONCE])
            for one in together:
                del stand[one]


def _goes_back_to(folder: RunFolder, step: int) -> bool:
    """Whether a run was killed, and has a checkpoint of a step it may go back to."""
    last = next((event["event"] for event in reversed(folder.events())), None)
    return last not in ("stopped", "finished", "diverged") and is_intact(folder.checkpoints, step)


def _in_turn(
    folders: Sequence[RunFolder], how: training.RunOptions, again: str, made: bool = False
) -> tuple[list[RunError | UserError], int]:
    """Trains group after group while there is time. Returns what was said of those that failed, and the number tried.

    One that diverges leaves the others to go on. So does one that cannot begin, unless the command has `made` the runs:
    what it lacks, they all do. Groups are made anew each time: others may have trained some of them meanwhile.
    """
    deadline, done = time.monotonic() + how.time_limit, 0
    failed: list[RunError | UserError] = []
    waiting = list(folders)
    while groups := list(group_compatible(waiting)):
        left = deadline - time.monotonic()
        if left <= 0:
            typer.echo(
                f"no time for {len(groups)} of {done + len(groups)} groups of runs; go on with: {again}"
            )
            break
        step, together = groups[0]
        names = ", ".join(dict.fromkeys(folder.experiment().name for folder in together))
        runs = f"{len(together)} runs side by side" if len(together) > 1 else "1 run"
        place = f"{done + 1} of {done + len(groups)}: " if done + len(groups) > 1 else ""
        typer.echo(f"{place}{names}: {runs}, from step {step:,}", err=True)
        waiting = [folder for folder in waiting if folder not in together]
        done += 1
        try:
            training.resume(together, how._replace(time_limit=left), again, made)
        except typer.Exit as leave:
            if leave.exit_code:  # Ctrl-C: what is there is resumable
                raise
        except (RunError, UserError) as error:
            if made and not isinstance(error, Diverged):
                raise
            typer.echo(f"controlvae: {error}", err=True)
            failed.append(error.with_traceback(None))  # which would keep the engine alive
        gc.collect()  # an engine and its compiled steps know each other, and the next group needs their memory
    return failed, done


def _readable(folders: Sequence[RunFolder], failed: list[RunError | UserError]) -> list[RunFolder]:
    """Those whose settings and checkpoints can be read; what is wrong with the others is said, and added."""
    readable = []
    for folder in folders:
        try:
            folder.experiment()
            training.resume_step(folder)
            readable.append(folder)
        except UserError as error:
            typer.echo(f"controlvae: {error}", err=True)
            failed.append(error)
    return readable
