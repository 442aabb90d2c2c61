"""Reproducing the paper: trains and evaluates what a table or figure needs, and writes it."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from controlvae.errors import UserError, shell_command
from controlvae.lab.api.evaluate import evaluate_pending
from controlvae.lab.cluster.base import Cluster
from controlvae.lab.cluster.submit import (
    JobOptions,
    Submission,
    make_job_options,
    plan_runs,
    train_runs_anywhere,
)
from controlvae.lab.config import PRESETS, method_differences, override, preset
from controlvae.lab.config.presets import current_preset_name, preset_folder
from controlvae.lab.evaluation.external_codes import ScoreFile, score_files
from controlvae.lab.runs.folder import RunFolder, find_runs
from controlvae.lab.training.resolve import Overrides, as_assignments
from controlvae.lab.training.run_setup import Plan, plan_seeds
from controlvae.lab.training.runner import RunOptions
from controlvae.lab.training.scheduler import create_folders, runs_in
from controlvae.paper.dialog_examples import write_examples
from controlvae.paper.figure_writer import write_figure
from controlvae.paper.figures import RESULTS, PaperResult, paper_result
from controlvae.paper.measured import MeasuredRun
from controlvae.paper.specs import PaperExamples, PaperFigure, PaperTable, Row
from controlvae.paper.table_writer import write_table

_DEFAULT_SEEDS = 5


class Reproduction(NamedTuple):
    """Text of a reproduced table or figure, and its files."""

    text: str
    is_markdown: bool
    files: list[Path]


def list_results() -> dict[str, str]:
    """Return the titles of the tables and figures that can be reproduced, by name."""
    return {result.name: result.title for result in RESULTS.values()}


def reproduce(
    name: str,
    *,
    runs: str | Path = "runs/paper",
    seeds: int | None = None,
    only: Sequence[str] = (),
    methods: Mapping[str, str | Path] | Sequence[str] = (),
    overrides: Overrides = None,
    train: bool = True,
    fid: int | None = None,
    device: str = "auto",
    time_limit: str | float | None = None,
    checkpoint_every: str | float = 120.0,
    data_root: str | Path | None = None,
    progress: bool | Callable[[Any], None] = True,
    cluster: Cluster | None = None,
    dry_run: bool = False,
) -> Reproduction | Submission:
    """Reproduce a table or figure of the paper.

    Every method and seed is trained if needed, resumed if it was stopped, and evaluated. Methods
    that share their network and differ in their law train side by side, which suits a large GPU.
    Calling the function again resumes.

    Args:
        name: Name of a table or figure. `list_results` has them all.
        runs: Folder of the runs, tables and figures.
        seeds: Seeds of each method: the number to train (5 by default), and the number to use (all
            by default).
        only: Presets to train. The default is all.
        methods: Additional methods by name: folders of their runs, or of scored codes. They are
            evaluated but not trained. Texts such as `my method=runs/mine` are accepted too.
        overrides: Settings to change in every trained method. The table says so.
        train: Train what is missing. False only uses existing runs.
        fid: Number of images for FID and KID.
        device: `auto`, `cpu`, `cuda` or `cuda:1`.
        time_limit: Training time in seconds, or a text such as `90s`, `9m` or `1.5h`.
        checkpoint_every: Time between checkpoints, in the same form.
        data_root: Data folder that is searched first.
        progress: True prints progress, False is silent, a function receives `Progress` updates.
        cluster: `lab.Slurm(...)` or `lab.Local(...)` trains in jobs. The default is this process.
        dry_run: Show the plan of the jobs, and do nothing.

    Returns:
        The text and the files of the result. A dry run, or jobs that are not waited for, return
        what was planned or submitted.
    """
    jobs, device = make_job_options(cluster, device, dry_run)
    options = RunOptions.parse(device, time_limit, checkpoint_every, False, data_root, progress)
    result, path, assignments = paper_result(name), Path(runs), as_assignments(overrides)
    selected, added = _selected_presets(result, only), _added_methods(result, methods)
    _check_arguments(name, path, only, assignments, train, bool(added))
    added = {method: found[:seeds] for method, found in added.items()}
    if jobs is not None:
        jobs = replace(jobs, evaluate=() if fid is None else ("--fid", str(fid)))
    if train and (left := _train(selected, assignments, path, seeds, options, jobs)) is not None:
        return left
    found = _collect_runs(result, added, path, seeds)
    folders = [folder for members in found.values() for folder in members]
    _evaluate(folders, options, fid, iwae=_uses_metric(result, "iwae"))
    result = replace(result, rows=(*result.rows, *(Row(method, None) for method in added)))
    return _write_result(result, found, added, path, options)


def _evaluate(
    folders: Sequence[RunFolder], options: RunOptions, fid: int | None, iwae: bool
) -> None:
    where = (options.device, options.data_root, options.display)
    evaluate_pending(folders, *where, fid=fid, iwae=iwae)


def _collect_runs(
    result: PaperResult, added: Mapping[str, Sequence[MeasuredRun]], path: Path, seeds: int | None
) -> dict[str, list[RunFolder]]:
    """Return the runs of each preset and of each added method."""
    found = {
        row.key: sorted(runs_in(preset_folder(path, row.key)), key=_seed)[:seeds]
        for row in result.rows
    }
    return found | {
        method: [one for one in members if isinstance(one, RunFolder)]
        for method, members in added.items()
    }


def _write_result(
    result: PaperResult,
    found: Mapping[str, list[RunFolder]],
    added: Mapping[str, Sequence[MeasuredRun]],
    path: Path,
    options: RunOptions,
) -> Reproduction:
    markdown, sheet = path / f"{result.name}.md", path / f"{result.name}.csv"
    everything: dict[str, Sequence[MeasuredRun]] = {**found, **added}
    if isinstance(result, PaperTable):
        return Reproduction(write_table(result, everything, path), True, [markdown, sheet])
    if isinstance(result, PaperExamples):
        return Reproduction(write_examples(result, found, path), False, [markdown])
    lines = write_figure(result, everything, path, root=options.data_root, device=options.device)
    return Reproduction("\n".join(lines), False, [path / f"{result.name}.png", sheet])


def _check_arguments(
    name: str, path: Path, only: Sequence[str], assignments: list[str], train: bool, added: bool
) -> None:
    """Raise UserError if arguments contradict each other."""
    if path.is_file():
        raise UserError(f"{path} is a file; --runs takes a folder")
    if assignments and not train:
        raise UserError("--set changes what is trained, but --no-train trains nothing")
    if only and not train:
        raise UserError("--only selects what to train, but --no-train trains nothing; remove one")
    if not (train or added or path.exists()):
        raise UserError(f"no folder {path}; --runs takes the folder with the runs of {name}")


def _uses_metric(result: PaperResult, metric: str) -> bool:
    """Return True if a table has a column of this metric."""
    if not isinstance(result, PaperTable):
        return False
    paths = [*result.columns.values(), *result.more.values()]
    return any(metric in path.split(".") for path in paths)


def _train(
    presets: Sequence[str],
    assignments: list[str],
    path: Path,
    seeds: int | None,
    options: RunOptions,
    jobs: JobOptions | None,
) -> Submission | None:
    """Train each preset and seed, in this process or in jobs.

    All overrides are validated first, so a wrong one creates nothing.
    """
    plans: dict[str, Plan] = {}
    count = seeds or _DEFAULT_SEEDS
    for name in presets:
        try:
            experiment = override(preset(name), assignments)
        except UserError as error:
            hint = "; --only PRESET trains some of the methods" if len(presets) > 1 else ""
            raise UserError(f"{name}: {error}{hint}") from None
        plans[name] = plan_seeds(experiment, preset_folder(path, name), count, always_nested=True)
    changes = [word for text in assignments for word in ("--set", text)]

    def create() -> list[RunFolder]:
        return [
            folder
            for name, plan in plans.items()
            for folder in create_folders(
                plan, shell_command("train", name, *changes, "--seeds", count), "--runs"
            )
        ]

    return train_runs_anywhere(plan_runs(plans.values()), create, path, options, jobs)


def _seed(folder: RunFolder) -> int:
    return folder.experiment().training.seed


def _added_methods(
    result: PaperResult, methods: Mapping[str, str | Path] | Sequence[str]
) -> dict[str, Sequence[MeasuredRun]]:
    """Return the runs, or the scores of external codes, of additional methods by name."""
    if isinstance(methods, Mapping):
        pairs = [(name, str(path)) for name, path in methods.items()]
    else:
        pairs = [_split_method(text) for text in methods]
    added: dict[str, Sequence[MeasuredRun]] = {}
    for name, where in pairs:
        _check_method_name(name, result, added)
        path = Path(where)
        scored = score_files(path)
        can_use_scores = isinstance(result, PaperTable) or (
            isinstance(result, PaperFigure) and result.scatter
        )
        if scored and not can_use_scores:
            raise UserError(f"{result.name} needs runs, but {path} holds only scores")
        trained = find_runs(path) if not scored or any(path.rglob("experiment.json")) else []
        _check_one_method(name, path, scored, trained)
        added[name] = [*scored, *sorted(trained, key=_seed)]
    return added


def _check_method_name(name: str, result: PaperResult, added: Mapping[str, Any]) -> None:
    if not name.strip() or name != name.strip() or name[0] == "_" or set("|$\n\r") & set(name):
        raise UserError(
            "the name of a method must not start with a space or _, or contain |, $ or a line "
            f"break, got {name!r}"
        )
    if name in added or name in PRESETS or name in [row.method for row in result.rows]:
        raise UserError(f"the name {name!r} is taken; choose another for your method")


def _split_method(text: str) -> tuple[str, str]:
    """Split NAME=FOLDER. Both may contain a `=`.

    The split is at the first `=` that leaves an existing path, else at the first without spaces.
    """
    pieces = text.split("=")
    ways = [("=".join(pieces[:at]), "=".join(pieces[at:])) for at in range(1, len(pieces))]
    # os.path.exists accepts names that are too long for a file. Path.exists raises.
    existing = (way for way in ways if os.path.exists(way[1]))
    close = (way for way in ways if not way[0].endswith(" ") and not way[1].startswith(" "))
    name, where = next(existing, None) or next(close, ("", ""))
    if not (name and where):
        raise UserError(
            f"--method takes NAME=FOLDER, as in --method 'my method=runs/mine', got {text!r}"
        )
    return name, where


def _check_one_method(
    name: str, path: Path, scored: Sequence[ScoreFile], trained: Sequence[RunFolder]
) -> None:
    """Raise UserError if the runs are not seeds of a single method."""
    if scored and trained:
        raise UserError(
            f"{path} holds both runs and scored codes, but {name!r} must be one of them; "
            "name the files of either"
        )
    seeds: dict[int, RunFolder] = {}
    for folder in trained:
        first, same_seed = trained[0], seeds.setdefault(_seed(folder), folder)
        if differing := method_differences(first.experiment(), folder.experiment()):
            other, reason = first, f"differ in {', '.join(differing)}"
        elif same_seed is not folder:
            other, reason = same_seed, f"are both seed {_seed(folder)}"
        else:
            continue
        advice = f"give each its own name, as in --method {f'{name} 1={other.path}'!r}"
        raise UserError(
            f"{other.path} and {folder.path} {reason}, so {name!r} cannot be both; {advice}"
        )


def _selected_presets(result: PaperResult, only: Sequence[str]) -> list[str]:
    presets = [row.key for row in result.rows]
    only = [current_preset_name(name) for name in only]
    for name in only:
        if name not in presets:
            raise UserError(f"{result.name} has no preset {name!r}; it has {', '.join(presets)}")
    return [name for name in presets if not only or name in only]
