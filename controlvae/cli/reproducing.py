"""`reproduce`: trains what a table or figure of the paper needs, evaluates it, and writes the table or figure."""

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.markdown import Markdown

from controlvae.cli import training
from controlvae.cli.many import runs_in, seed_folders, train_all
from controlvae.cli.runs import evaluate_new
from controlvae.errors import UserError
from controlvae.experiments import preset
from controlvae.experiments.paper import RESULTS, PaperExamples, PaperResult, PaperTable, paper_result
from controlvae.report.paper_figures import write_figure
from controlvae.report.responses import write_examples
from controlvae.report.tables import write_table


def show_results() -> None:
    """What can be reproduced."""
    for result in RESULTS.values():
        ready = [row.preset for row in result.rows if row.preset]
        typer.echo(f"{result.name:21s} {result.title}; {len(ready)} of {len(result.rows)} methods in this version")


def reproduce(
    name: str, runs: Path, seeds: int, only: list[str], train: bool, how: training.How, fid: int | None
) -> None:
    """Every method x seed of a result: trained where it is not yet, resumed where it stopped, then evaluated.

    Methods that share their network and differ in control alone train side by side, which suits a large GPU.
    """
    result = paper_result(name)
    if runs.is_file():
        raise UserError(f"{runs} is a file; --runs takes a folder")
    presets = _wanted(result, only)
    if train:
        made = [seed_folders(preset(p), runs / p, seeds, f"controlvae train {p} --seeds {seeds}") for p in presets]
        train_all([folder for folders in made for folder in folders], how)
    found = {name: runs_in(runs / name) for name in presets}
    for folders in found.values():
        for folder in folders:
            evaluate_new(folder, how.device, how.data_root, fid)
    if isinstance(result, PaperTable):
        text = write_table(result, found, runs)
        Console().print(Markdown(text)) if sys.stdout.isatty() else typer.echo(text)
        typer.echo(f"written to {runs / f'{name}.md'} and .csv")
    elif isinstance(result, PaperExamples):
        typer.echo(write_examples(result, found, runs))
        typer.echo(f"written to {runs / f'{name}.md'}")
    else:
        for line in write_figure(result, found, runs, root=how.data_root, device=how.device):
            typer.echo(line)
        typer.echo(f"written to {runs / f'{name}.png'} and .csv")


def _wanted(result: PaperResult, only: list[str]) -> list[str]:
    presets = [row.preset for row in result.rows if row.preset]
    for name in only:
        if name not in presets:
            raise UserError(f"{result.name} has no preset {name!r}; it has {', '.join(presets)}")
    return [preset for preset in presets if not only or preset in only]
