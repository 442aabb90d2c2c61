"""The tables of a report: metrics of all runs, disentanglement scores, image metrics."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from controlvae.diagnostics.collapse import describe_used_latents
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.evaluation.registry import SCORE_METRICS, Metric, find_metric
from controlvae.lab.evaluation.statistics import sample_sd
from controlvae.lab.plots.curves import RunTrace
from controlvae.lab.reports.formatting import format_number
from controlvae.lab.reports.measurement_notes import image_notes, number_notes, score_notes
from controlvae.lab.reports.notes import merge_notes
from controlvae.lab.reports.report_run import ReportRun
from controlvae.lab.reports.views import TableView
from controlvae.lab.runs.folder import look_up, mean_of_last_tenth

BIASED_NOTE = (
    "the estimate is that of a minibatch (β-TCVAE), too high by about (latents − 1) log(examples)"
)
BATCH_NOTE = (
    "the estimate is that of a minibatch (β-TCVAE) with its bias removed, which is possible while "
    "the KL is well below log(batch size)"
)
_AVERAGED = ("elbo", "reconstruction", "kl")  # metrics averaged over seeds
_NEAR_CEILING = 0.98  # of the largest mutual information that can be estimated
_IMAGE_METRICS = tuple(
    find_metric(path)
    for path in (
        "elbo",
        "train.elbo",
        "best.elbo",
        "iwae.bound",
        "iwae.elbo_of_the_same",
        "bits_per_dimension.elbo",
        "likeness.ssim",
        "likeness.psnr",
        "ms_ssim.score",
        "lpips.score",
        "fid.samples.score",
        "best.fid.samples.score",
        "fid.reconstructions.score",
        "kid.samples.score",
        "kid.reconstructions.score",
        *(
            f"{key}.samples.{name}"
            for key in ("prdc", "prdc_dinov2")
            for name in ("precision", "recall", "density", "coverage")
        ),
        "fd_dinov2.samples.score",
        "fd_dinov2.reconstructions.score",
    )
)


def number_table(runs: Sequence[ReportRun]) -> TableView:
    """Build the table of metrics; a dash stands for a run that has not been evaluated."""
    logged = {
        head: column
        for head, column in _LOGGED.items()
        if any(_final_mean(run.trace, column) for run in runs)
    }
    heads = ["run", *(head for head, _ in _NUMBERS), *logged]
    rows = []
    for run in runs:
        cells = [cell(run.metrics, run.trace) if run.metrics else "–" for _, cell in _NUMBERS]
        cells += [_final_mean(run.trace, column) or "–" for column in logged.values()]
        rows.append([run.name, *cells])
    averaged = {metric.name: metric for metric in map(find_metric, _AVERAGED)}
    columns = [averaged.get(head) for head in heads[1:]]
    best = _best_cells(runs, columns)
    rows += _seed_statistics(runs, columns)
    evaluated = _evaluated(runs)
    notes = [_NUMBERS_NOTE] if evaluated else []
    notes += [_LOGGED_NOTE] if logged else []
    notes += [f"Biased: {BIASED_NOTE}."] if any(is_biased(run.trace) for run in runs) else []
    if any(batch_estimate_note(run.trace) == BATCH_NOTE for run in runs):
        notes.append(f"Batch: {BATCH_NOTE}.")
    notes += merge_notes(
        [(run.name, note) for run in evaluated for note in number_notes(run.metrics)]
    )
    return TableView("Numbers", heads, rows, notes, best)


def score_table(runs: Sequence[ReportRun]) -> TableView | None:
    """Build the table of disentanglement scores, or return None if no run has any."""
    evaluated = _evaluated(runs)
    shown = [metric for metric in SCORE_METRICS if _has_metric(evaluated, metric)]
    if not shown:
        return None
    notes = merge_notes(
        [(run.name, note) for run in evaluated for note in score_notes(run.metrics)]
    )
    return _metric_table("Disentanglement", runs, evaluated, shown, notes)


def image_table(runs: Sequence[ReportRun]) -> TableView | None:
    """Build the table of image metrics, or return None if no run has any.

    A column that no run has is left out. So are the columns of the best weights by validation
    where the last weights are the best.
    """
    evaluated = [run for run in _evaluated(runs) if "likeness" in run.metrics]
    if not evaluated:
        return None
    best_is_last = all(_is_best_last(run.metrics) for run in evaluated)
    shown = [
        metric
        for metric in _IMAGE_METRICS
        if _has_metric(evaluated, metric) and not (best_is_last and metric.path.startswith("best."))
    ]
    notes = merge_notes(
        [(run.name, note) for run in evaluated for note in image_notes(run.metrics)]
    )
    return _metric_table("Image metrics", runs, evaluated, shown, notes)


def _metric_table(
    title: str,
    runs: Sequence[ReportRun],
    evaluated: Sequence[ReportRun],
    metrics: Sequence[Metric],
    notes: list[str],
) -> TableView:
    rows = []
    for run in evaluated:
        values = [(metric, look_up(run.metrics, metric.path)) for metric in metrics]
        rows.append([run.name, *("–" if v is None else metric.format(v) for metric, v in values)])
    rows += _seed_statistics(runs, metrics)
    heads = ["run", *(metric.name for metric in metrics)]
    return TableView(title, heads, rows, notes, _best_cells(evaluated, metrics))


def _best_cells(
    runs: Sequence[ReportRun], columns: Sequence[Metric | None]
) -> frozenset[tuple[int, int]]:
    """Return row and column of the best values, as they are rounded for the table.

    A column has none if its metric has no better direction or if all its values are equal.

    Args:
        runs: The runs of the table.
        columns: Metric of each column but the first, or None.
    """
    best = set()
    for place, metric in enumerate(columns, start=1):
        if metric is None or metric.better is None:
            continue
        values = {row: look_up(run.metrics, metric.path) for row, run in enumerate(runs)}
        numbers = {row: value for row, value in values.items() if value is not None}
        if len({metric.format(value) for value in numbers.values()}) < 2:
            continue
        target = (max if metric.better == "higher" else min)(numbers.values())
        shown = metric.format(target)
        best |= {(row, place) for row, value in numbers.items() if metric.format(value) == shown}
    return frozenset(best)


def _has_metric(runs: Sequence[ReportRun], metric: Metric) -> bool:
    return any(look_up(run.metrics, metric.path) is not None for run in runs)


def _is_best_last(metrics: Mapping[str, Any]) -> bool:
    best = metrics.get("best", {})
    return best.get("step", metrics["step"]) == metrics["step"]


def _evaluated(runs: Sequence[ReportRun]) -> list[ReportRun]:
    return [run for run in runs if run.metrics]


def _seed_statistics(
    runs: Sequence[ReportRun], columns: Sequence[Metric | None]
) -> list[list[str]]:
    """Return a row of means ± standard deviations if all runs are seeds of one experiment.

    Args:
        runs: The runs of the table.
        columns: Metric of each column; no mean is shown for None.

    Returns:
        One row, or none if a run differs in more than its seed, in its step, or has no metrics.
    """
    evaluated = [run.metrics for run in _evaluated(runs)]
    first = runs[0].experiment
    are_seeds = all(
        replace(e, training=replace(e.training, seed=first.training.seed)) == first
        for e in (run.experiment for run in runs)
    )
    steps = {metrics["step"] for metrics in evaluated}
    if len(evaluated) < max(2, len(runs)) or not are_seeds or len(steps) > 1:
        return []
    row = [f"mean ± sd of {len(evaluated)} seeds"]
    for metric in columns:
        values = [None if metric is None else look_up(m, metric.path) for m in evaluated]
        numbers = [value for value in values if value is not None]
        if metric is None or len(numbers) < len(evaluated):
            row.append("–")
        else:
            mean, sd = statistics.fmean(numbers), sample_sd(numbers)
            row.append(f"{metric.format(mean)} ± {metric.format(sd)}")
    return [row]


def is_biased(trace: RunTrace) -> bool:
    """Return True for the minibatch estimates of earlier versions, which are biased."""
    return is_batch_estimate(trace) and "tc_bias" not in trace.records[-1]


def is_batch_estimate(trace: RunTrace) -> bool:
    """Return True if the total correlation is estimated from a minibatch, not by a critic."""
    last = trace.records[-1] if trace.records else {}
    return "tc" in last and "critic_accuracy" not in last


def batch_estimate_note(trace: RunTrace) -> str | None:
    """Return what to know about a total correlation that was estimated in minibatches."""
    if not is_batch_estimate(trace):
        return None
    return BIASED_NOTE if is_biased(trace) else BATCH_NOTE


def _final_mean(trace: RunTrace, column: str) -> str | None:
    """Format the mean of a log column over the last tenth; None if the log does not have it."""
    if not trace.records or column not in trace.records[-1]:
        return None
    mark = {None: "", BIASED_NOTE: " (biased)", BATCH_NOTE: " (batch)"}[batch_estimate_note(trace)]
    return format_nats(mean_of_last_tenth(trace.records, column)) + mark


def _target(trace: RunTrace) -> str:
    target = trace.records[-1]["target"] if trace.records else None
    quantity = "" if trace.controlled == "kl" else f" ({QUANTITY_LABELS[trace.controlled]})"
    return "–" if target is None else f"{format_nats(target)}{quantity}"


def _mutual_information(metrics: Mapping[str, Any]) -> str:
    # Older metrics files lack it.
    lower = look_up(metrics, "mutual_information.lower")
    examples = look_up(metrics, "mutual_information.examples")
    if lower is None or examples is None or examples <= 0:
        return format_number(None)
    is_at_ceiling = lower > _NEAR_CEILING * math.log(examples)
    return f"{'≥ ' if is_at_ceiling else ''}{format_number(lower)}"


def _response(key: str, metrics: Mapping[str, Any], _: RunTrace) -> str:
    response = metrics["step_response"]
    if response is None:
        return "–"
    match key, response[key]:
        case "settling_time", None:
            return "never"
        case "settling_time", step:
            return f"{step:,.0f}"
        case "overshoot", share:
            return f"{100 * share:.1f} %"
        case _, share:
            return f"{100 * share:+.2f} %"


# Head of the column, and the cell of an evaluated run.
_NUMBERS: tuple[tuple[str, Callable[[Mapping[str, Any], RunTrace], str]], ...] = (
    ("step", lambda metrics, _: f"{metrics['step']:,}"),
    (find_metric("elbo").name, lambda metrics, _: format_number(metrics["elbo"])),
    (
        find_metric("reconstruction").name,
        lambda metrics, _: format_number(metrics["reconstruction"]),
    ),
    (find_metric("kl").name, lambda metrics, _: format_number(metrics["kl"])),
    ("target", lambda _, trace: _target(trace)),
    ("used latents", lambda metrics, _: describe_used_latents(metrics["kl_per_latent"])),
    (find_metric("active_units").name, lambda metrics, _: str(metrics.get("active_units", "–"))),
    (
        find_metric("mutual_information.lower").name,
        lambda metrics, _: _mutual_information(metrics),
    ),
    *(
        (find_metric(f"step_response.{key}").name, partial(_response, key))
        for key in ("settling_time", "overshoot", "steady_state_error")
    ),
)
# Head of the column, and column of the log.
_LOGGED = {"total correlation": "tc", "accuracy of the critic": "critic_accuracy"}
_LOGGED_NOTE = (
    "Total correlation and accuracy of its critic: mean over the training batches of the last "
    "tenth of the steps. The estimate of a critic that lags behind may lie below zero."
)
_NUMBERS_NOTE = (
    "Nats per example, with the weights of the last step. Used latents: KL of at least 0.01 nats. "
    "Active units (Burda et al. 2016): latents whose posterior mean has a variance above 0.01 over "
    "the examples. Mutual information: of example and code, a lower bound from "
    "at most 4,096 examples; ≥ marks a value near the logarithm of their number, the largest that "
    "can be estimated from them. Settling (to ±2 %), overshoot (start-up included) and "
    "steady-state error: from the training batches of runs with a target; the KL of other "
    "examples may differ from it."
)
