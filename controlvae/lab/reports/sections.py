"""The tables of a report, one row per run: numbers of all, disentanglement scores, pictures; and what each is of."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlvae.diagnostics.collapse import describe_used_latents
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.engines.measurements import format_nats
from controlvae.lab.evaluation.images import describe_fid
from controlvae.lab.evaluation.registry import SCORE_METRICS, find_metric
from controlvae.lab.evaluation.statistics import sample_sd
from controlvae.lab.plots.curves import Trace
from controlvae.lab.reports.formatting import format_number
from controlvae.lab.reports.markup import table, warning
from controlvae.lab.reports.notes import describe_data, merge_notes
from controlvae.lab.runs.folder import RunFolder, look_up, mean_of_last_tenth
from controlvae.lab.runs.loaded import format_count

BIASED = (
    "the estimate is that of a minibatch (β-TCVAE), too high by about (latents − 1) log(examples)"
)
_NEAR = 0.98  # of its ceiling: a mutual information that says nothing more
# Columns of the table of images, by their paths in metrics.json.
_IMAGE_COLUMNS = tuple(
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
        "fid.samples.score",
        "best.fid.samples.score",
        "fid.reconstructions.score",
        "kid.samples.score",
        "kid.reconstructions.score",
    )
)


def number_table(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """The table of metrics, one row per run; a dash where `evaluate` has not been run."""
    traces = [Trace.of(name, folder) for name, folder in zip(names, folders, strict=True)]
    logged = {
        head: column
        for head, column in _LOGGED.items()
        if any(_ending(trace, column) for trace in traces)
    }
    rows = [["run", *(head for head, _ in _NUMBERS), *logged]]
    for name, folder, trace in zip(names, folders, traces, strict=True):
        metrics, found = (
            folder.metrics(),
            [_ending(trace, column) or "–" for column in logged.values()],
        )
        rows.append(
            [
                name,
                *("–" if metrics is None else cell(metrics, trace) for _, cell in _NUMBERS),
                *found,
            ]
        )
    means = {find_metric(path).name: path for path in ("elbo", "reconstruction", "kl")}
    rows += _over_seeds(folders, [(means.get(head), "{:.2f}".format) for head in rows[0][1:]])
    measured = _measured(names, folders)
    notes = [_NUMBERS_NOTE] if measured else []
    notes += [_LOGGED_NOTE] if logged else []
    notes += [f"Biased: {BIASED}."] if any(biased(trace) for trace in traces) else []
    notes += merge_notes(
        [(name, sentence) for name, metrics in measured for sentence in _measured_on(metrics)]
    )
    return f"<h2>Numbers</h2>{_not_alike(names, folders)}{table(rows, notes)}"


def _over_seeds(
    folders: Sequence[RunFolder], columns: Sequence[tuple[str | None, Callable[[float], str]]]
) -> list[list[str]]:
    """A row of means ± sd where all runs are seeds of one experiment at one step; no row elsewhere.

    A column is where its number is in metrics.json and how it is written; None where a mean says little.
    """
    found = [metrics for folder in folders if (metrics := folder.metrics())]
    settings = [folder.experiment() for folder in folders]
    first = settings[0]
    alike = all(
        replace(one, training=replace(one.training, seed=first.training.seed)) == first
        for one in settings
    )
    if (
        len(found) < max(2, len(folders))
        or not alike
        or len({metrics["step"] for metrics in found}) > 1
    ):
        return []
    row = [f"mean ± sd of {len(found)} seeds"]
    for path, written in columns:
        values = [None if path is None else look_up(metrics, path) for metrics in found]
        numbers = [value for value in values if value is not None]
        whole = len(numbers) == len(found)
        row.append(
            f"{written(statistics.fmean(numbers))} ± {written(sample_sd(numbers))}"
            if whole
            else "–"
        )
    return [row]


def _measured(
    names: Sequence[str], folders: Sequence[RunFolder]
) -> list[tuple[str, dict[str, Any]]]:
    """The runs that have been evaluated, each with its name."""
    return [
        (name, metrics)
        for name, folder in zip(names, folders, strict=True)
        if (metrics := folder.metrics())
    ]


def _measured_on(metrics: Mapping[str, Any]) -> list[str]:
    draws = metrics.get("draws", 1)  # older ones had one
    return [
        f"Measured on {format_count(metrics['examples'], metrics['split'])}, {draws} sample{'s' if draws > 1 else ''} of z "
        f"for each.",
        f"Reconstruction: {metrics['likelihood']}.",
    ]


def _not_alike(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """That runs are not on the same data, and which is on which; nothing where they are."""
    on: dict[str, list[str]] = {}
    for name, folder in zip(names, folders, strict=True):
        on.setdefault(describe_data(folder.experiment()), []).append(name)
    if len(on) < 2:
        return ""
    which = "; ".join(f"{' and '.join(runs)} on {data}" for data, runs in on.items())
    return warning(
        f"These runs are not on the same data, so their nats are not to be compared: {which}."
    )


def _target(trace: Trace) -> str:
    target = trace.records[-1]["target"] if trace.records else None
    of = "" if trace.controlled == "kl" else f" ({QUANTITY_LABELS[trace.controlled]})"
    return "–" if target is None else f"{format_nats(target)}{of}"


def _ending(trace: Trace, column: str) -> str | None:
    """The mean of a column over the last tenth of a log; None where a log has none."""
    if not trace.records or column not in trace.records[-1]:
        return None
    return format_nats(mean_of_last_tenth(trace.records, column)) + (
        " (biased)" if biased(trace) else ""
    )


def biased(trace: Trace) -> bool:
    """Whether its total correlation is the estimate of a minibatch, not of a critic."""
    return (
        bool(trace.records)
        and "tc" in trace.records[-1]
        and "critic_accuracy" not in trace.records[-1]
    )


def _told(metrics: Mapping[str, Any]) -> str:
    told = metrics.get("mutual_information")  # older measurements lack it
    if told is None:
        return format_number(None)
    at_most = math.log(told["examples"])
    return f"{'≥ ' if told['lower'] > _NEAR * at_most else ''}{format_number(told['lower'])}"


def _response(metrics: Mapping[str, Any], shown: Callable[[Mapping[str, Any]], str]) -> str:
    return "–" if metrics["step_response"] is None else shown(metrics["step_response"])


def _settled(response: Mapping[str, Any]) -> str:
    return "never" if response["settling_time"] is None else f"{response['settling_time']:,.0f}"


def score_table(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """Every score that some run has, one row per run; nothing where no factors are known."""
    runs = _measured(names, folders)
    shown = [
        metric
        for metric in SCORE_METRICS
        if any(look_up(m, metric.path) is not None for _, m in runs)
    ]
    if not shown:
        return ""
    rows = [["run", *(metric.name for metric in shown)]]
    for name, metrics in runs:
        found = [look_up(metrics, metric.path) for metric in shown]
        rows.append([name, *(format_number(value, 3) for value in found)])
    rows += _over_seeds(folders, [(metric.path, metric.format) for metric in shown])
    notes = merge_notes(
        [(name, sentence) for name, metrics in runs for sentence in _scored_on(metrics)]
    )
    return f"<h3>Disentanglement</h3>{table(rows, notes)}"


def _scored_on(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences on the examples and factors behind the scores of a run, how each was worked out, or why it was not."""
    notes, skipped = [], dict[str, list[str]]()
    if truth := metrics.get("ground_truth"):  # older measurements lack it
        factors = ", ".join(truth["names"]) or "no factor"
        notes.append(
            f"Scores of {format_count(truth['examples'], truth['split'])}, over {factors}."
        )
        if truth["unordered"]:
            left_out = ", ".join(truth["unordered"])
            notes.append(
                f"No quantity, so left out of the sampled MIG and the continuous SAP: {left_out}."
            )
        if truth["constant"]:
            notes.append(f"Left out because they do not vary: {', '.join(truth['constant'])}.")
    for metric in SCORE_METRICS:
        score = metrics.get(metric.path.partition(".")[0], {})
        notes += [f"{score['estimator']}."] if "estimator" in score else []
        if "skipped" in score:
            skipped.setdefault(score["skipped"], []).append(metric.name)
    return [
        *dict.fromkeys(notes),
        *(f"No {'; '.join(heads)}: {reason}." for reason, heads in skipped.items()),
    ]


def image_table(names: Sequence[str], folders: Sequence[RunFolder]) -> str:
    """Nothing where no run has been measured on its pictures. A column that no run has is left out."""
    runs = [(name, metrics) for name, metrics in _measured(names, folders) if "likeness" in metrics]
    if not runs:
        return ""
    shown = [
        metric
        for metric in _IMAGE_COLUMNS
        if any(look_up(metrics, metric.path) is not None for _, metrics in runs)
    ]
    rows = [["run", *(metric.name for metric in shown)]]
    for name, metrics in runs:
        numbers = [(metric, look_up(metrics, metric.path)) for metric in shown]
        cells = ("–" if value is None else metric.format(value) for metric, value in numbers)
        rows.append([name, *cells])
    rows += _over_seeds(folders, [(metric.path, metric.format) for metric in shown])
    notes = merge_notes([(name, note) for name, metrics in runs for note in _seen_on(metrics)])
    return f"<h3>Pictures</h3>{table(rows, notes)}"


def _seen_on(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences on what was measured and how."""
    notes = [f"ELBO: {format_count(metrics['examples'], metrics['split'])}."]
    if "train" in metrics:
        notes.append(
            f"Training part: {format_count(metrics['train']['examples'], metrics['train']['split'])}."
        )
    if "best" in metrics:
        words = metrics["best"].get(
            "skipped", "the weights that had the best ELBO on the validation examples"
        )
        notes.append(f"Best by validation: {words}.")
    if "iwae" in metrics:
        bound = metrics["iwae"]
        notes.append(f"{bound['estimator']}: {format_count(bound['examples'], bound['split'])}.")
    if "how" in metrics.get("bits_per_dimension", {}):
        notes.append(f"Bits per dimension: by the ELBO, {metrics['bits_per_dimension']['how']}.")
    likeness = metrics["likeness"]
    if "ssim" in likeness:
        words = f"{likeness['examples']:,} reconstructions from {likeness['from']} ({likeness['split']})"
        notes.append(f"SSIM and PSNR: {words}.")
    notes += [f"{words}." for words in [describe_fid(metrics)] if words]
    skipped = {
        "bits per dimension": "bits_per_dimension",
        "SSIM and PSNR": "likeness",
        "FID and KID": "fid",
    }
    left_out = {name: metrics.get(key, {}).get("skipped") for name, key in skipped.items()}
    return notes + [f"No {name}: {reason}." for name, reason in left_out.items() if reason]


# Heading, and the cell of a run that has been evaluated.
_NUMBERS: tuple[tuple[str, Callable[[Mapping[str, Any], Trace], str]], ...] = (
    ("step", lambda metrics, _: f"{metrics['step']:,}"),
    (find_metric("elbo").name, lambda metrics, _: format_number(metrics["elbo"])),
    (
        find_metric("reconstruction").name,
        lambda metrics, _: format_number(metrics["reconstruction"]),
    ),
    (find_metric("kl").name, lambda metrics, _: format_number(metrics["kl"])),
    ("target", lambda _, trace: _target(trace)),
    ("used latents", lambda metrics, _: describe_used_latents(metrics["kl_per_latent"])),
    (find_metric("active_units").name, lambda metrics, _: str(metrics["active_units"])),
    (find_metric("mutual_information.lower").name, lambda metrics, _: _told(metrics)),
    (
        find_metric("step_response.settling_time").name,
        lambda metrics, _: _response(metrics, _settled),
    ),
    (
        find_metric("step_response.overshoot").name,
        lambda metrics, _: _response(metrics, lambda r: f"{100 * r['overshoot']:.1f} %"),
    ),
    (
        find_metric("step_response.steady_state_error").name,
        lambda metrics, _: _response(metrics, lambda r: f"{100 * r['steady_state_error']:+.2f} %"),
    ),
)
_LOGGED = {
    "total correlation": "tc",
    "critic's accuracy": "critic_accuracy",
}  # heading, and the column of the log
_LOGGED_NOTE = (
    "Total correlation, and the share its critic tells right: on the training batches of the last tenth; a critic that "
    "is behind may answer below zero."
)
_NUMBERS_NOTE = (
    "Nats per example, with the weights of the last step. Used latents: KL of at least 0.01 nats. "
    "Active units (Burda et al. 2016): latents whose posterior mean has a variance above 0.01 over "
    "the examples. Mutual "
    "information: of example and code, its lower bound, of at most 4,096; ≥ where that is the logarithm of their "
    "number, above which no estimate from so few can come. Settling (to ±2 %), overshoot (start-up "
    "included) and steady-state error: from the training batches, where a set point is held; the KL of examples that "
    "were not trained on may lie off it."
)
