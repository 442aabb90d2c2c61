"""Many runs of one command: made where they are missing, grouped by what one engine can train, trained in turn."""

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from controlvae.cli import training
from controlvae.errors import Diverged, UserError
from controlvae.experiments import Experiment, RunFolder, find_runs
from controlvae.training.engines import shared_settings
from controlvae.training.journal import in_training

_MOST_AT_ONCE = 25  # models side by side: more gain nothing on the largest card


def seed_folders(
    experiment: Experiment, path: Path, seeds: int, command: str, option: str = "--run"
) -> list[RunFolder]:
    """The run folders of an experiment's seeds, made where they are missing; one that is there must be like it.

    `option` is the one by which the command at hand takes another place.
    """
    planned = training.plan_seeds(experiment, path, seeds, apart=True)  # a single one, too: more may join
    folders = []
    for one, folder in zip(planned.experiments, planned.folders, strict=True):
        try:
            if not folder.experiment_file.is_file():
                folder.create(one, command)
            elif _numbers_of(folder.experiment()) != _numbers_of(one):
                if folder.events() or in_training(folder):
                    raise UserError(
                        f"{folder.path} holds a run with other settings; choose another {option}, or delete it"
                    )
                folder.write(one, command)  # it never began, because its data was not there or did not fit
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder.path}: {error.strerror}") from None
        folders.append(folder)
    return folders


def _numbers_of(experiment: Experiment) -> Experiment:
    """What decides its numbers, without the words."""
    return replace(experiment, name="", about="", paper="")


def runs_in(path: Path) -> list[RunFolder]:
    return find_runs(path) if path.exists() else []


def train_all(folders: Sequence[RunFolder], how: training.How) -> None:
    """Trains what is not at its end yet, group by group, until all is done or the time is up."""
    deadline = time.monotonic() + how.time_limit
    failed: Diverged | None = None
    for together in side_by_side(folders):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        names = dict.fromkeys(folder.experiment().name for folder in together)
        typer.echo(f"{', '.join(names)}: {len(together)} run{'s side by side' if len(together) > 1 else ''}", err=True)
        try:
            training.resume(together, how._replace(time_limit=left), again="the same command")
        except typer.Exit as leave:
            if leave.exit_code:  # Ctrl-C: what is there is resumable
                raise
        except Diverged as error:
            typer.echo(f"controlvae: {error}", err=True)
            failed = error.with_traceback(None)  # which would keep the engine alive
        gc.collect()  # an engine and its compiled steps know each other, and the next group needs their memory
    if failed is not None and not any(folder.records() for folder in folders):
        raise failed


def side_by_side(folders: Sequence[RunFolder]) -> Iterator[list[RunFolder]]:
    """Groups of runs that one engine can train: alike but in seed and control, and at the same step."""
    groups: dict[str, list[RunFolder]] = {}
    for folder in folders:
        if (step := training.goes_on_from(folder)) is not None:
            key = f"{shared_settings(folder.experiment())} {step}"
            groups.setdefault(key, []).append(folder)
    for together in groups.values():
        for start in range(0, len(together), _MOST_AT_ONCE):
            yield together[start : start + _MOST_AT_ONCE]
