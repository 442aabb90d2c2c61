"""The tables of a report: metrics of all runs, disentanglement scores, image metrics."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.evaluation.statistics import sample_sd
from controlvae.lab.plots.curves import Trace
from controlvae.lab.reports.formatting import format_number
from controlvae.lab.reports.measurement_notes import image_notes, number_notes, score_notes
from controlvae.lab.reports.notes import merge_notes
from controlvae.lab.reports.report_run import ReportRun
from controlvae.lab.reports.views import TableView
from controlvae.lab.runs.folder import last_tenth, look_up

BIASED_NOTE = (
    "the estimate is that of a minibatch (β-TCVAE), too high by about (latents − 1) log(examples)"
)
_NEAR_CEILING = 0.98  # of the largest mutual information that can be estimated
# Disentanglement scores: head of the column and path in metrics.json.
SCORES = {
    "MIG, sampled": "mig_sampled.score",
    "RMIG": "rmig.score",
    "MIG, histogram": "mig_histogram.score",
    "DCI, disentanglement": "dci.disentanglement",
    "DCI, completeness": "dci.completeness",
    "DCI, informativeness": "dci.informativeness",
    "SAP": "sap.score",
    "SAP, continuous": "sap_continuous.score",
    "FactorVAE score": "factor_vae_score.score",
    "β-VAE score": "beta_vae_score.score",
    "modularity": "modularity.score",
}
_TWO_DIGITS = "{:.2f}".format


def _thousandfold(value: float) -> str:
    return f"{1000 * value:.2f}"


# Image metrics: head of the column, path in metrics.json and format.
_IMAGE_METRICS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("ELBO", "elbo", _TWO_DIGITS),
    ("ELBO, training set", "train.elbo", _TWO_DIGITS),
    ("ELBO, best by validation", "best.elbo", _TWO_DIGITS),
    ("IWAE", "iwae.bound", _TWO_DIGITS),
    ("ELBO, examples of the IWAE", "iwae.elbo_of_the_same", _TWO_DIGITS),
    ("bits per dimension", "bits_per_dimension.elbo", "{:.4f}".format),
    ("SSIM", "likeness.ssim", "{:.3f}".format),
    ("PSNR, dB", "likeness.psnr", _TWO_DIGITS),
    ("FID, samples", "fid.samples.score", _TWO_DIGITS),
    ("FID, samples, best by validation", "best.fid.samples.score", _TWO_DIGITS),
    ("FID, reconstructions", "fid.reconstructions.score", _TWO_DIGITS),
    ("KID × 1000, samples", "kid.samples.score", _thousandfold),
    ("KID × 1000, reconstructions", "kid.reconstructions.score", _thousandfold),
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
    averaged = {"ELBO": "elbo", "reconstruction": "reconstruction", "KL": "kl"}
    rows += _seed_statistics(runs, [(averaged.get(head), _TWO_DIGITS) for head in heads[1:]])
    evaluated = _evaluated(runs)
    notes = [_NUMBERS_NOTE] if evaluated else []
    notes += [_LOGGED_NOTE] if logged else []
    notes += [f"Biased: {BIASED_NOTE}."] if any(is_biased(run.trace) for run in runs) else []
    notes += merge_notes(
        [(run.name, note) for run in evaluated for note in number_notes(run.metrics)]
    )
    return TableView("Numbers", heads, rows, notes)


def score_table(runs: Sequence[ReportRun]) -> TableView | None:
    """Build the table of disentanglement scores, or return None if no run has any."""
    evaluated = _evaluated(runs)
    shown = {
        head: path
        for head, path in SCORES.items()
        if any(look_up(run.metrics, path) is not None for run in evaluated)
    }
    if not shown:
        return None
    rows = [
        [run.name, *(format_number(look_up(run.metrics, path), 3) for path in shown.values())]
        for run in evaluated
    ]
    rows += _seed_statistics(runs, [(path, "{:.3f}".format) for path in shown.values()])
    notes = merge_notes(
        [(run.name, note) for run in evaluated for note in score_notes(run.metrics, SCORES)]
    )
    return TableView("Disentanglement", ["run", *shown], rows, notes)


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
        column
        for column in _IMAGE_METRICS
        if any(look_up(run.metrics, column[1]) is not None for run in evaluated)
        and not (best_is_last and column[1].startswith("best."))
    ]
    rows = []
    for run in evaluated:
        values = [(look_up(run.metrics, path), formatted) for _, path, formatted in shown]
        rows.append([run.name, *("–" if v is None else formatted(v) for v, formatted in values)])
    rows += _seed_statistics(runs, [(path, formatted) for _, path, formatted in shown])
    notes = merge_notes(
        [(run.name, note) for run in evaluated for note in image_notes(run.metrics)]
    )
    return TableView("Image metrics", ["run", *(head for head, _, _ in shown)], rows, notes)


def _is_best_last(metrics: Mapping[str, Any]) -> bool:
    best = metrics.get("best", {})
    return best.get("step", metrics["step"]) == metrics["step"]


def _evaluated(runs: Sequence[ReportRun]) -> list[ReportRun]:
    return [run for run in runs if run.metrics]


def _seed_statistics(
    runs: Sequence[ReportRun], columns: Sequence[tuple[str | None, Callable[[float], str]]]
) -> list[list[str]]:
    """Return a row of means ± standard deviations if all runs are seeds of one experiment.

    Args:
        runs: The runs of the table.
        columns: Path in metrics.json and format of each column; no mean is shown for path None.

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
    for path, formatted in columns:
        values = [None if path is None else look_up(metrics, path) for metrics in evaluated]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(evaluated):
            row.append("–")
        else:
            mean, sd = statistics.fmean(numbers), sample_sd(numbers)
            row.append(f"{formatted(mean)} ± {formatted(sd)}")
    return [row]


def is_biased(trace: Trace) -> bool:
    """Return True if the total correlation is estimated from a minibatch, not by a critic."""
    last = trace.records[-1] if trace.records else {}
    return "tc" in last and "critic_accuracy" not in last


def _final_mean(trace: Trace, column: str) -> str | None:
    """Format the mean of a log column over the last tenth; None if the log does not have it."""
    if not trace.records or column not in trace.records[-1]:
        return None
    return format_nats(last_tenth(trace.records, column)) + (" (biased)" if is_biased(trace) else "")


def _target(trace: Trace) -> str:
    target = trace.records[-1]["target"] if trace.records else None
    quantity = "" if trace.controlled == "kl" else f" ({QUANTITY_LABELS[trace.controlled]})"
    return "–" if target is None else f"{format_nats(target)}{quantity}"


def _mutual_information(metrics: Mapping[str, Any]) -> str:
    information = metrics.get("mutual_information")  # older metrics files lack it
    if information is None:
        return format_number(None)
    is_at_ceiling = information["lower"] > _NEAR_CEILING * math.log(information["examples"])
    return f"{'≥ ' if is_at_ceiling else ''}{format_number(information['lower'])}"


def _response(metrics: Mapping[str, Any], key: str) -> str:
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
_NUMBERS: tuple[tuple[str, Callable[[Mapping[str, Any], Trace], str]], ...] = (
    ("step", lambda metrics, _: f"{metrics['step']:,}"),
    ("ELBO", lambda metrics, _: format_number(metrics["elbo"])),
    ("reconstruction", lambda metrics, _: format_number(metrics["reconstruction"])),
    ("KL", lambda metrics, _: format_number(metrics["kl"])),
    ("target", lambda _, trace: _target(trace)),
    (
        "active latents",
        lambda metrics, _: f"{metrics['active_units']} of {len(metrics['kl_per_latent'])}",
    ),
    ("mutual information", lambda metrics, _: _mutual_information(metrics)),
    ("settled at step", lambda metrics, _: _response(metrics, "settling_time")),
    ("overshoot", lambda metrics, _: _response(metrics, "overshoot")),
    ("steady-state error", lambda metrics, _: _response(metrics, "steady_state_error")),
)
# Head of the column, and column of the log.
_LOGGED = {"total correlation": "tc", "accuracy of the critic": "critic_accuracy"}
_LOGGED_NOTE = (
    "Total correlation and accuracy of its critic: mean over the training batches of the last "
    "tenth of the steps. The estimate of a critic that lags behind may lie below zero."
)
_NUMBERS_NOTE = (
    "Nats per example, with the weights of the last step. Active latents: those whose posterior "
    "mean has a variance above 0.01. Mutual information: of example and code, a lower bound from "
    "at most 4,096 examples; ≥ marks a value near the logarithm of their number, the largest that "
    "can be estimated from them. Settling (to ±2 %), overshoot (start-up included) and "
    "steady-state error: from the training batches of runs with a target; the KL of other "
    "examples may differ from it."
)
