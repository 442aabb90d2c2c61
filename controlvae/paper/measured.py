"""Runs and score files behind a table or figure, and how their settings differ from the presets."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlvae.lab.config import Experiment, changed_fields, preset
from controlvae.lab.evaluation.external_codes import ScoreFile
from controlvae.lab.reports.notes import describe_data
from controlvae.lab.runs.folder import RunFolder
from controlvae.lab.runs.loaded import format_count
from controlvae.paper.specs import Row

MeasuredRun = RunFolder | ScoreFile
EvaluatedSeeds = Sequence[tuple[MeasuredRun, Mapping[str, Any]]]  # seeds of a method, with metrics
SeedsByMethod = Mapping[str, EvaluatedSeeds]

# Fields in which runs of one method may differ.
_IGNORED_FIELDS = {"name", "about", "paper", "training.seed"}


def describe_seed(run: MeasuredRun) -> int | str:
    """Return the seed of a run, or the file name of external scores."""
    return run.experiment().training.seed if isinstance(run, RunFolder) else run.path.name


def changed_from_preset(folder: RunFolder, name: str) -> list[str]:
    """Return the settings in which a run differs from a preset, except for its seed."""
    return _changed_settings(folder, preset(name))


def changed_preset_settings(row: Row, run: MeasuredRun) -> list[str]:
    """Return the settings in which a run differs from the preset of its row, if there is one."""
    if row.preset is None or isinstance(run, ScoreFile):
        return []
    return changed_from_preset(run, row.preset)


def describe_changed_settings(
    rows: Sequence[Row], runs: Mapping[str, Sequence[MeasuredRun]]
) -> list[str]:
    """Return one line that lists settings that differ from the presets, or nothing."""
    changes = [
        (row.method, changed_preset_settings(row, run))
        for row in rows
        for run in runs.get(row.key, [])
        if row.preset
    ]
    paths_by_methods: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for _, paths in changes for path in paths):
        methods = [method for method, paths in changes if path in paths]
        shared = len(methods) == len(changes)
        label = "all runs" if shared else "; ".join(dict.fromkeys(methods))
        paths_by_methods.setdefault(label, []).append(path)
    parts = [f"{', '.join(paths)} ({label})" for label, paths in paths_by_methods.items()]
    return [f"Settings that differ from the presets: {'; '.join(parts)}."] if parts else []


def describe_custom_method(
    method: str, folder: RunFolder, first: Row, runs: Mapping[str, Sequence[MeasuredRun]]
) -> str:
    """Describe how a user-supplied method differs from the first row.

    Args:
        method: Name of the method.
        folder: One of its runs.
        first: First row of the table, trained or as a preset.
        runs: Seeds of each method, by the key of its row.
    """
    trained = [run for run in runs.get(first.key, ()) if isinstance(run, RunFolder)]
    reference = trained[0].experiment() if trained else preset(first.key)
    changed = _changed_settings(folder, reference)
    name = first.method if trained else first.key
    exception = f", except {', '.join(changed)}" if changed else ""
    sentence = f"{method} has the settings of {name}{exception}."
    if not any(path.partition(".")[0] == "data" for path in changed):
        return sentence
    return f"{sentence} Its data: {', '.join(_describe_measured_data(folder))}."


def _describe_measured_data(folder: RunFolder) -> list[str]:
    parts, metrics = [describe_data(folder.experiment())], folder.metrics() or {}
    measured = metrics.get("ground_truth", metrics)  # scores may use other examples than the ELBO
    if "examples" in measured:
        parts.append(format_count(measured["examples"], measured["split"]))
    if "names" in measured:
        names = [
            f"{name} (unordered)" if name in measured["unordered"] else name
            for name in measured["names"]
        ]
        parts.append(f"factors {', '.join(names) or 'that do not vary'}")
    return parts


def _changed_settings(folder: RunFolder, other: Experiment) -> list[str]:
    changed = changed_fields(folder.experiment(), other)
    return [path for path in changed if path not in _IGNORED_FIELDS]
