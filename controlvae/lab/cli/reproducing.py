"""`reproduce`: trains what a table or figure of the paper needs, evaluates it, and writes the table or figure."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console
from rich.markdown import Markdown

from controlvae.errors import UserError, shell_command
from controlvae.lab.cli import training
from controlvae.lab.cli.many import runs_in, seed_folders, train_all
from controlvae.lab.cli.runs import evaluate_new
from controlvae.lab.config import PRESETS, method_differences, override, preset
from controlvae.lab.evaluation.external_codes import ScoreFile, score_files
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.paper.dialog_examples import write_examples
from controlvae.paper.figures import write_figure
from controlvae.paper.printed import (
    RESULTS,
    PaperExamples,
    PaperFigure,
    PaperResult,
    PaperTable,
    Row,
    paper_result,
)
from controlvae.paper.tables import Measured, write_table

_SEEDS = 5  # of each method


def show_results() -> None:
    """What can be reproduced."""
    for result in RESULTS.values():
        typer.echo(f"{result.name:21s} {result.title}")


def reproduce(
    name: str,
    runs: Path,
    seeds: int | None,
    only: Sequence[str],
    beside: Sequence[str],
    sets: Sequence[str],
    train: bool,
    how: training.RunOptions,
    fid: int | None,
) -> None:
    """Every method x seed of a result: trained where it is not yet, resumed where it stopped, then evaluated.

    Methods that share their network and differ in control alone train side by side, which suits a large GPU. Methods
    set beside them are not trained, and evaluated where that was not done as for the others. `sets` change every method
    that is trained; the table says so. Where `seeds` are not given, five are trained and all that are found are taken.
    """
    result = paper_result(name)
    if runs.is_file():
        raise UserError(f"{runs} is a file; --runs takes a folder")
    wanted, own = _wanted(result, only), _own(result, beside)
    if sets and not train:
        raise UserError("--set changes what is trained, and --no-train trains nothing")
    if only and not train:
        raise UserError(
            "--only says what to train, and --no-train trains nothing; leave one of them out"
        )
    if not (train or own or runs.exists()):
        raise UserError(f"no folder {runs}; --runs takes the one that runs of {name} are kept in")
    own = {method: given[:seeds] for method, given in own.items()}
    if train:
        train_all(_folders(wanted, sets, runs, seeds or _SEEDS), how)
    found = {row.key: sorted(runs_in(runs / row.key), key=_seed)[:seeds] for row in result.rows}
    found |= {
        method: [one for one in given if isinstance(one, RunFolder)]
        for method, given in own.items()
    }
    every = [folder for folders in found.values() for folder in folders]
    evaluate_new(every, how.device, how.data_root, fid, iwae=_shows(result, "iwae"))
    result = replace(result, rows=(*result.rows, *(Row(method, None) for method in own)))
    if isinstance(result, PaperTable):
        text = write_table(result, {**found, **own}, runs)
        Console().print(Markdown(text)) if sys.stdout.isatty() else typer.echo(text)
        typer.echo(f"written to {runs / f'{name}.md'} and .csv")
    elif isinstance(result, PaperExamples):
        typer.echo(write_examples(result, found, runs))
        typer.echo(f"written to {runs / f'{name}.md'}")
    else:
        for line in write_figure(
            result, {**found, **own}, runs, root=how.data_root, device=how.device
        ):
            typer.echo(line)
        typer.echo(f"written to {runs / f'{name}.png'} and .csv")


def _shows(result: PaperResult, metric: str) -> bool:
    """Whether a result has numbers of a metric."""
    paths = (
        [*result.columns.values(), *result.more.values()] if isinstance(result, PaperTable) else []
    )
    return any(metric in path.split(".") for path in paths)


def _folders(
    presets: Sequence[str], sets: Sequence[str], runs: Path, seeds: int
) -> list[RunFolder]:
    """Those of every seed of these presets, each below its preset's name. None is made where settings fit not all."""
    changes, experiments = [word for one in sets for word in ("--set", one)], {}
    for one in presets:
        try:
            experiments[one] = override(preset(one), list(sets))
        except UserError as error:
            some = "; --only PRESET trains some of the methods" if len(presets) > 1 else ""
            raise UserError(f"{one}: {error}{some}") from None
    return [
        folder
        for one, experiment in experiments.items()
        for folder in seed_folders(
            experiment,
            runs / one,
            seeds,
            shell_command("train", one, *changes, "--seeds", seeds),
            option="--runs",
        )
    ]


def _seed(folder: RunFolder) -> int:
    return folder.experiment().training.seed


def _own(result: PaperResult, beside: Sequence[str]) -> dict[str, Sequence[Measured]]:
    """Methods of the user's own: by name, their runs, or the scores of codes made elsewhere."""
    own: dict[str, Sequence[Measured]] = {}
    for given in beside:
        name, where = _parted(given)
        if not (name and where):
            raise UserError(
                f"--beside takes NAME=FOLDER, as in --beside 'my method=runs/mine', got {given!r}"
            )
        if name != name.strip() or name[0] == "_" or set("|$\n\r") & set(name):
            raise UserError(
                f"a name of a method has no |, $ or line break, and no space or _ before it, got {name!r}"
            )
        if name in own or name in PRESETS or name in [row.method for row in result.rows]:
            raise UserError(f"{name!r} is taken; give your method another name")
        path = Path(where)
        scored = score_files(path)
        if scored and not (
            isinstance(result, PaperTable) or (isinstance(result, PaperFigure) and result.against)
        ):
            raise UserError(f"{result.name} is made from runs; {path} holds scores alone")
        trained = find_runs(path) if not scored or any(path.rglob("experiment.json")) else []
        _check_one_method(name, path, scored, trained)
        own[name] = [*scored, *sorted(trained, key=_seed)]
    return own


def _parted(given: str) -> tuple[str, str]:
    """NAME=FOLDER, though both may have a `=` of their own: at the first that leaves a path, or has no space by it."""
    pieces = given.split("=")
    ways = [("=".join(pieces[:at]), "=".join(pieces[at:])) for at in range(1, len(pieces))]
    there = (way for way in ways if os.path.exists(way[1]))  # Path.exists minds how long a name is
    close = (way for way in ways if not way[0].endswith(" ") and not way[1].startswith(" "))
    return next(there, None) or next(close, ("", ""))


def _check_one_method(
    name: str, path: Path, scored: Sequence[ScoreFile], trained: Sequence[RunFolder]
) -> None:
    """Refuses to take for seeds of one method what is more than one."""
    if scored and trained:
        raise UserError(
            f"{path} holds runs and scored codes, of which {name!r} can be one; name the files of either"
        )
    seeds: dict[int, RunFolder] = {}
    for folder in trained:
        first, twin = trained[0], seeds.setdefault(_seed(folder), folder)
        if differing := method_differences(first.experiment(), folder.experiment()):
            other, why = first, f"differ in {', '.join(differing)}"
        elif twin is not folder:
            other, why = twin, f"are both seed {_seed(folder)}"
        else:
            continue
        advice = f"give each a name of its own, as in --beside {f'{name} 1={other.path}'!r}"
        raise UserError(
            f"{other.path} and {folder.path} {why}, so {name!r} cannot be both; {advice}"
        )


def _wanted(result: PaperResult, only: Sequence[str]) -> list[str]:
    presets = [row.key for row in result.rows]
    for name in only:
        if name not in presets:
            raise UserError(f"{result.name} has no preset {name!r}; it has {', '.join(presets)}")
    return [preset for preset in presets if not only or preset in only]
