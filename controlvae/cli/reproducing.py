"""`reproduce`: trains what a table or figure of the paper needs, evaluates it, and writes the table or figure."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.markdown import Markdown

from controlvae.cli import training
from controlvae.cli.main import evaluate_run
from controlvae.errors import UserError
from controlvae.experiments import RunFolder, find_runs, preset
from controlvae.experiments.paper import RESULTS, PaperFigure, PaperTable, paper_result
from controlvae.report.paper_figures import write_figure
from controlvae.report.tables import write_table
from controlvae.training.checkpoint import latest_step
from controlvae.training.engines import shared_settings

_MOST_AT_ONCE = 25  # models side by side: more gain nothing on the largest card


def show_results() -> None:
    """What can be reproduced."""
    for result in RESULTS.values():
        ready = [row.preset for row in result.rows if row.preset]
        typer.echo(f"{result.name:21s} {result.title}; {len(ready)} of {len(result.rows)} methods in this version")


def reproduce(name: str, runs: Path, seeds: int, only: list[str], train: bool, how: training.How) -> None:
    """Every method x seed of a result: trained where it is not yet, resumed where it stopped, then evaluated."""
    result = paper_result(name)
    presets = _wanted(result, only)
    if train:
        _train(presets, runs, seeds, how)
    found = {preset: _runs(runs / preset) for preset in presets}
    for folders in found.values():
        for folder in folders:
            _evaluate(folder, how)
    if isinstance(result, PaperTable):
        text = write_table(result, found, runs)
        Console().print(Markdown(text)) if sys.stdout.isatty() else typer.echo(text)
        typer.echo(f"written to {runs / f'{name}.md'} and .csv")
    else:
        for line in write_figure(result, found, runs, root=how.data_root, device=how.device):
            typer.echo(line)
        typer.echo(f"written to {runs / f'{name}.png'} and .csv")


def _wanted(result: PaperTable | PaperFigure, only: list[str]) -> list[str]:
    presets = [row.preset for row in result.rows if row.preset]
    for name in only:
        if name not in presets:
            raise UserError(f"{result.name} has no preset {name!r}; it has {', '.join(presets)}")
    return [preset for preset in presets if not only or preset in only]


def _train(presets: list[str], runs: Path, seeds: int, how: training.How) -> None:
    """Methods that share their network and differ in control alone train side by side, which suits a large GPU."""
    deadline = time.monotonic() + how.time_limit
    for names, folders in side_by_side([(name, seed_folders(name, runs / name, seeds)) for name in presets]):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        typer.echo(f"{', '.join(names)}: {len(folders)} runs in {runs}", err=True)
        try:
            training.resume(folders, how._replace(time_limit=left))
        except typer.Exit as leave:
            if leave.exit_code:  # Ctrl-C: the table of what is there is still worth writing, the rest is resumable
                raise


def seed_folders(name: str, path: Path, seeds: int) -> list[RunFolder]:
    """The run folders of a preset's seeds that are not at their end, made where they are not there yet."""
    folders = {folder.path: folder for folder in _runs(path)}
    for experiment, folder in zip(*training.plan_seeds(preset(name), path, max(2, seeds)), strict=True):
        if folder.path not in folders and len(folders) < seeds:
            folder.create(experiment, f"controlvae train {name} --seeds {seeds}")
            folders[folder.path] = folder
    return [folder for folder in folders.values() if not folder.ended()]


def side_by_side(waiting: list[tuple[str, list[RunFolder]]]) -> Iterator[tuple[list[str], list[RunFolder]]]:
    """Groups of runs that one engine can train: alike but in seed and control, and at the same step."""
    groups: dict[str, tuple[list[str], list[RunFolder]]] = {}
    for name, folders in waiting:
        for folder in folders:
            key = f"{shared_settings(folder.experiment())} {latest_step(folder.checkpoints) or 0}"
            names, together = groups.setdefault(key, ([], []))
            together.append(folder)
            if name not in names:
                names.append(name)
    for names, together in groups.values():
        for start in range(0, len(together), _MOST_AT_ONCE):
            yield names, together[start : start + _MOST_AT_ONCE]


def _runs(folder: Path) -> list[RunFolder]:
    return find_runs(folder) if folder.exists() else []


def _evaluate(folder: RunFolder, how: training.How) -> None:
    """Once for each checkpoint: metrics older than the newest one are made anew."""
    step = latest_step(folder.checkpoints)
    if step is not None and folder.evaluated_step() != step:
        evaluate_run(folder.path, how.device, how.data_root)
