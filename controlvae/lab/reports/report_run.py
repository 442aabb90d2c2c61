"""Runs as a report reads them: each folder once, with a name to tell it from the others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from controlvae.errors import UserError
from controlvae.lab.config import Experiment, method_differences
from controlvae.lab.plots.curves import RunTrace
from controlvae.lab.plots.figure_files import label_runs
from controlvae.lab.reports.warnings import run_warnings
from controlvae.lab.runs.folder import RunFolder


@dataclass(frozen=True)
class ReportRun:
    """Everything a report needs to know about a run."""

    name: str
    folder: RunFolder
    experiment: Experiment
    trace: RunTrace
    metrics: dict[str, Any]  # empty if the run has not been evaluated
    warnings: list[str]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The log."""
        return self.trace.records


def read_runs(folders: Sequence[RunFolder]) -> tuple[list[ReportRun], list[str]]:
    """Read run folders, skipping those that cannot be read.

    Returns:
        The runs, and one line per skipped folder that names it and gives the reason.
    """
    runs, skipped = [], []
    for folder in folders:
        try:
            runs.append(_read_run(folder))
        except UserError as error:
            skipped.append(f"skipped {folder.path}: {error}")
        except (LookupError, TypeError, ValueError, OSError) as error:
            skipped.append(f"skipped {folder.path}: unreadable ({error!r})")
    names = name_runs([run.folder for run in runs])
    named = zip(runs, names, label_runs(names), strict=True)
    return [_rename(run, name, label) for run, name, label in named], skipped


def _read_run(folder: RunFolder) -> ReportRun:
    experiment, metrics = folder.experiment(), folder.metrics() or {}
    trace = RunTrace.of(experiment.name, folder)
    return ReportRun(experiment.name, folder, experiment, trace, metrics, run_warnings(folder))


def _rename(run: ReportRun, name: str, label: str) -> ReportRun:
    """Return a run with its name, and the label that it has in figures."""
    return replace(run, name=name, trace=replace(run.trace, name=label))


def name_runs(folders: Sequence[RunFolder]) -> list[str]:
    """Return a distinct name for each run.

    The name is that of the preset. Where it is ambiguous, the seed is added if the runs differ in
    nothing else, and otherwise the path of the folder is used.
    """
    experiments = [folder.experiment() for folder in folders]
    names = [experiment.name for experiment in experiments]
    if len(set(names)) == len(names):
        return names
    firsts = {e.name: e for e in reversed(experiments)}
    seeded = [f"{e.name}, seed {e.training.seed}" for e in experiments]
    are_seeds = not any(method_differences(firsts[e.name], e) for e in experiments)
    if are_seeds and len(set(seeded)) == len(seeded):
        return seeded
    return [str(folder.path) for folder in folders]
