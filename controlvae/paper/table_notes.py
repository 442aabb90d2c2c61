"""Notes below a table: differences between methods, estimators of the scores, remarks on runs."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from controlvae.lab.evaluation.external_codes import ScoreFile
from controlvae.lab.evaluation.feature_distances import describe_fid
from controlvae.lab.evaluation.statistics import compare_means, holm_correction
from controlvae.lab.runs.folder import RunFolder, look_up, nested_value
from controlvae.lab.runs.loaded import format_count
from controlvae.laws import Cyclical, Schedule
from controlvae.laws.backend import FLOATS
from controlvae.metrics.disentanglement.mig import REMARK
from controlvae.paper.measured import (
    MeasuredRun,
    SeedsByMethod,
    describe_custom_method,
    describe_seed,
)
from controlvae.paper.specs import PaperTable, Row

_FAR_STEP = 1e15  # a step by which every ramp has ended


class ScoreProvenance(NamedTuple):
    """Estimator and factors of a score. Scores that differ in this cannot be compared."""

    estimator: str
    factors: tuple[str, ...]  # empty if an old measurement does not record them


def compose_table_notes(
    table: PaperTable, seeds: SeedsByMethod, runs: Mapping[str, Sequence[MeasuredRun]]
) -> list[str]:
    """Return all notes below a table; empty strings and duplicates may occur.

    Args:
        table: Specification of the table.
        seeds: Evaluated seeds with their metrics, by method.
        runs: All seeds, by the key of their row.
    """
    first = next(name for name, path in table.columns.items() if "per_factor" not in path)
    values = {
        method: [
            value
            for _, metrics in evaluated
            if (value := look_up(metrics, table.columns[first])) is not None
        ]
        for method, evaluated in seeds.items()
    }
    several = any(len(numbers) > 1 for numbers in values.values())
    provenance = _collect_provenance(_score_names(table), seeds)
    groups = provenance[_score_name(table.columns[first])]
    notes = [
        "± is the sample standard deviation over seeds." if several else "",
        _describe_differences(first, values, list(groups.values())),
        table.note,
        *_describe_estimators(provenance.values()),
    ]
    for row in table.rows:
        for run, metrics in seeds[row.method]:
            notes += _describe_run(table, row, run, metrics)
            notes += _describe_custom_run(table, row, run, metrics, runs)
    return notes


def _score_name(path: str) -> str:
    """Return the score a column belongs to, e.g. `rmig` for `rmig.per_factor.x`."""
    return path.partition(".")[0]


def _score_names(table: PaperTable) -> list[str]:
    return list(dict.fromkeys(map(_score_name, table.columns.values())))


def _collect_provenance(
    scores: Iterable[str], seeds: SeedsByMethod
) -> dict[str, dict[ScoreProvenance, list[str]]]:
    """Group methods by estimator and factors, for each score."""
    groups: dict[str, dict[ScoreProvenance, list[str]]] = {score: {} for score in scores}
    for method, evaluated in seeds.items():
        for _, metrics in evaluated:
            for score, methods in groups.items():
                result = metrics.get(score)
                if not isinstance(result, Mapping) or "estimator" not in result:
                    continue
                estimator, _, _ = result["estimator"].partition(REMARK)
                factors = (
                    result.get("per_factor") or nested_value(metrics, "ground_truth.names") or ()
                )
                key = ScoreProvenance(estimator, tuple(sorted(factors)))
                methods.setdefault(key, []).append(method)
    return {score: _merge_unrecorded_factors(methods) for score, methods in groups.items()}


def _merge_unrecorded_factors(
    methods: Mapping[ScoreProvenance, list[str]],
) -> dict[ScoreProvenance, list[str]]:
    """Assign scores without recorded factors to the only group with the same estimator."""
    merged: dict[ScoreProvenance, list[str]] = {}
    for key, names in methods.items():
        candidates = [k for k in methods if k.estimator == key.estimator and k.factors]
        target = candidates[0] if not key.factors and len(candidates) == 1 else key
        merged.setdefault(target, []).extend(names)
    return merged


def _describe_differences(
    column: str, values: Mapping[str, Sequence[float]], groups: Sequence[Sequence[str]]
) -> str:
    """Describe each method's difference from the first, with standard error and p-value.

    Only methods whose scores have the same provenance as those of the first are compared.
    """
    (first, reference), *others = values.items()
    group_indices = {
        method: [index for index, methods in enumerate(groups) if method in methods]
        for method in values
    }
    comparable = {
        method
        for method, indices in group_indices.items()
        if indices == group_indices[first] and len(indices) <= 1
    }
    results = {
        method: result
        for method, numbers in others
        if method in comparable and (result := compare_means(numbers, reference)) is not None
    }
    if not results:
        return ""
    digits = decimal_places(statistics.fmean(reference))
    p_values = holm_correction([result.p_value for result in results.values()])
    parts = [
        f"{method} {result.mean:+.{digits}f} ± {result.error:.{digits}f} (p = {p_value:.2g})"
        for (method, result), p_value in zip(results.items(), p_values, strict=True)
    ]
    test = "p by a two-sided permutation test" + (", Holm-corrected" if len(parts) > 1 else "")
    return f"{column}, difference from {first}, ± standard error, {test}: {'; '.join(parts)}."


def _describe_estimators(
    provenance: Collection[Mapping[ScoreProvenance, list[str]]],
) -> list[str]:
    """Describe how each score was estimated, and for which methods if they differ."""
    lines = []
    for methods in provenance:
        several = len({key.factors for key in methods}) > 1
        for key, names in methods.items():
            factors = f", factors {', '.join(key.factors)}" if several and key.factors else ""
            text = f"{key.estimator}{factors}."
            lines.append(
                text if len(methods) == 1 else f"{'; '.join(dict.fromkeys(names))}: {text}"
            )
    if any(len(methods) > 1 for methods in provenance):
        lines.append(
            "Scores by different estimators, of other factors or of different numbers of examples "
            "cannot be compared."
        )
    return lines


def _describe_run(
    table: PaperTable, row: Row, run: MeasuredRun, metrics: Mapping[str, Any]
) -> list[str]:
    """Describe what the numbers of a run were measured on, and what happened to it."""
    notes, columns = [], set(table.columns.values())
    seed = describe_seed(run)  # a number, or the name of a score file
    label = f"{row.method}, {f'seed {seed}' if isinstance(seed, int) else seed}"
    for score in _score_names(table):
        remark = str(nested_value(metrics, f"{score}.estimator") or "").partition(REMARK)[2]
        notes += [f"{label}: {remark}."] if remark else []
    if "elbo" in columns and "elbo" in metrics:
        count = format_count(metrics["examples"], metrics["split"])
        notes.append(f"ELBO: nats per example, {count}, reconstruction: {metrics['likelihood']}.")
    if "fid.samples.score" in columns and (fid := describe_fid(metrics)) is not None:
        notes.append(f"{fid}.")
    active = look_up(metrics, "factor_vae_score.active_latents")
    if "factor_vae_score.score" in columns and active == 0:
        notes.append(f"{label}: no latent is active, so its FactorVAE score is 0.")
    if isinstance(run, RunFolder):
        notes += _describe_unfinished_ramp(row.method, run, metrics["step"])
        notes += _describe_events(row.method, run, metrics["step"])
    return notes


def _describe_custom_run(
    table: PaperTable,
    row: Row,
    run: MeasuredRun,
    metrics: Mapping[str, Any],
    runs: Mapping[str, Sequence[MeasuredRun]],
) -> list[str]:
    """Describe a run of a user-supplied method."""
    if isinstance(run, ScoreFile):
        notes = [f"{row.method}: {metrics['of']}, {run.describe()}."]
    elif row.preset is None:
        notes = [describe_custom_method(row.method, run, table.rows[0], runs)]
    else:
        return []
    if row.preset is None:
        notes += describe_missing(row.method, metrics, table.columns)
    return notes


def _describe_events(method: str, folder: RunFolder, step: int) -> list[str]:
    seed, notes = folder.experiment().training.seed, []
    for event in folder.events():
        match event["event"]:
            case "target moved":
                notes.append(f"{method}, seed {seed}: its target was moved by hand.")
            case "branched" if event["changed"]:
                changed = " and ".join(event["changed"])
                notes.append(
                    f"{method}: trained with another {changed} up to step {event['step']:,}."
                )
            case "diverged":
                notes.append(f"{method}, seed {seed}: diverged; measured at step {step:,}.")
    return notes


def _describe_unfinished_ramp(method: str, folder: RunFolder, step: int) -> list[str]:
    target = getattr(folder.experiment().control, "target", None)
    moved = any(event["event"] == "target moved" for event in folder.events())
    if moved or not isinstance(target, Schedule) or isinstance(target, Cyclical):
        return []
    now, end = (float(target.at(float(at), FLOATS)) for at in (step, _FAR_STEP))
    if now == end:
        return []
    return [f"{method}: at step {step:,} its target is {now:.3g} of {end:.3g} nats."]


def describe_missing(
    method: str, metrics: Mapping[str, Any], columns: Mapping[str, str]
) -> list[str]:
    """Return why a method lacks numbers in some columns.

    Args:
        method: Name of the method.
        metrics: Content of its `metrics.json`.
        columns: Dotted paths by column heading.
    """
    reasons: dict[str, list[str]] = {}
    for name, path in columns.items():
        if look_up(metrics, path) is None:
            reasons.setdefault(_missing_reason(metrics, path), []).append(name)
    return [f"{method} has no {', '.join(names)}: {reason}." for reason, names in reasons.items()]


def _missing_reason(metrics: Mapping[str, Any], path: str) -> str:
    """Return the reason recorded at a path of the metrics, or at one of its parents."""
    value: Any = metrics
    parents = path.split(".")[:-1]
    for key in parents:
        if isinstance(value, Mapping) and "skipped" not in value:
            value = value.get(key, {})
    if isinstance(value, Mapping) and "skipped" in value:
        return str(value["skipped"])
    return "not among its factors" if value and parents[-1:] == ["per_factor"] else "not measured"


def decimal_places(value: float) -> int:
    """Return how many decimals of a number to show."""
    return 0 if abs(value) >= 1000 else 2 if abs(value) >= 10 else 4
