"""Summary of a sweep: reconstruction, ELBO and FID against the KL that each run ends at."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.config import describe_likelihood
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.evaluation.elbo import measure_step_response
from controlvae.lab.evaluation.feature_distances import describe_fid
from controlvae.lab.io import write_csv
from controlvae.lab.plots.curves import RunTrace
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.style import (
    COLOURS,
    QUIET_COLOUR,
    format_axis,
    format_step_axis,
    peak_after_startup,
)
from controlvae.lab.reports.elbo_bound import BaselinePair, write_elbo_bound
from controlvae.lab.reports.elbo_cost import (
    COST_HEADS,
    cost_fields,
    count_latents,
    describe_cost,
)
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, look_up, mean_of_last_tenth
from controlvae.lab.runs.loaded import format_count

SweepRuns = Mapping[str, Sequence[RunFolder]]  # the seeds of each setting
_TRAINING = "the training batches, means over the last tenth or log line"
_LABELS = {
    "reconstruction": "reconstruction (nats per example)",
    "elbo": "ELBO (nats per example)",
    "fid": "FID",
}
# Fields of metrics.json that an FID depends on, a column each in sweep.csv.
_FID_FIELDS = ("pictures", "reference_pictures", "split", "extractor", "resize")
_RESPONSE_HEADS = ("off target", "overshoot", "settled at step")


class FinalValues(NamedTuple):
    """Values of a run at its end, in nats per example; FID of its samples, NaN if not measured."""

    kl: float
    reconstruction: float
    elbo: float
    beta: float
    fid: float


class ControlResponse(NamedTuple):
    """Response of a setting to its target during training, averaged over seeds."""

    error: float
    overshoot: float
    settled: float | None  # step from which all seeds stay within 2 %


def write_sweep(runs: SweepRuns, out: Path, plain: str | None = None) -> list[str]:
    """Write `sweep.csv` and `sweep.png`, and return a table and the file names as lines.

    The numbers are those of the evaluation if every run was evaluated, and those of the log
    otherwise. β and the response to the target always come from the log.

    Args:
        runs: The seeds of each setting.
        out: Folder of the sweep.
        plain: Setting of the plain VAE, if there is one. The costs of the other settings in ELBO
            are then shown next to the predicted ones, and their gains in reconstruction are
            written to `theorem.csv` and `theorem.png`.
    """
    measured_on = _measured_on(runs)
    ends = {
        label: [_final_values(folder, measured_on) for folder in folders]
        for label, folders in runs.items()
    }
    pairs = [] if plain is None else _pair_with_baseline(runs, ends, plain, measured_on)
    rows, lines = [], []
    for label, folders in runs.items():
        own = [pair for pair in pairs if pair.setting == label]
        values = np.array([end for end in ends[label] if end is not None])
        if len(values) == 0:
            lines.append(f"{label}: not trained yet")
            continue
        costs = [] if plain is None else [_format_csv(field) for field in cost_fields(own)]
        rows.append([*_csv_row(label, folders, values, measured_on), *costs])
        lines.append(_describe_setting(label, folders, values) + describe_cost(own))
    heads = [
        *("setting", "seeds", "steps", "measured on"),
        *(f"{name} {statistic}" for name in FinalValues._fields for statistic in ("mean", "sd")),
        *(f"fid {name.replace('_', ' ')}" for name in _FID_FIELDS),
        *(f"{name} in training" for name in _RESPONSE_HEADS),
        *([] if plain is None else COST_HEADS),
    ]
    write_csv(out / "sweep.csv", heads, rows)
    save_figure(plot_sweep(runs, ends, measured_on), out / "sweep.png")
    lines += [*_notes(runs, measured_on), f"written to {out / 'sweep.csv'} and .png"]
    if plain is not None:
        lines += write_elbo_bound(pairs, list(ends), measured_on, out)
    return lines


def _csv_row(
    label: str, folders: Sequence[RunFolder], values: np.ndarray, measured_on: str
) -> list[Any]:
    mean = values.mean(0)
    sd = values.std(0, ddof=1) if len(values) > 1 else np.full(len(mean), np.nan)
    numbers = [value for pair in zip(mean, sd, strict=True) for value in pair]
    return [
        label,
        len(values),
        _common_step(folders),
        measured_on,
        *map(_format_csv, numbers),
        *_fid_fields(folders, measured_on),
        *map(_format_csv, _control_response(folders) or [None] * len(_RESPONSE_HEADS)),
    ]


def _describe_setting(label: str, folders: Sequence[RunFolder], values: np.ndarray) -> str:
    means = zip(FinalValues._fields, values.mean(0), strict=True)
    numbers = "  ".join(f"{name} {value:.3f}" for name, value in means if not np.isnan(value))
    seeds = f"{len(values)} seed{'s' if len(values) > 1 else ' '}"
    response = _describe_response(_control_response(folders))
    return f"{label:24s} {seeds}  step {_common_step(folders):,}  {numbers}{response}"


def _common_step(folders: Sequence[RunFolder]) -> int:
    """Return the smallest step of the trained seeds of a setting."""
    return min(_measurable_step(folder) for folder in folders if folder.records())


def plot_sweep(
    runs: SweepRuns, ends: Mapping[str, Sequence[FinalValues | None]], measured_on: str
) -> Figure:
    """Plot reconstruction, ELBO and FID against KL, a point per seed, and the controlled terms.

    Args:
        runs: The seeds of each setting.
        ends: Their final values; None for a seed that has not been trained.
        measured_on: Description of the examples behind the numbers.
    """
    known = [end for own in ends.values() for end in own if end is not None]
    has_fid = not np.isnan([end.fid for end in known]).all()
    columns = ["reconstruction", "elbo", *(["fid"] if has_fid else [])]
    figure = Figure(figsize=(3.6 * (len(columns) + 1), 3.2), layout="constrained")
    *scatters, curves = figure.subplots(1, len(columns) + 1)
    for axis, column in zip(scatters, columns, strict=True):
        _draw_against_kl(axis, ends, column)
    _draw_controlled_terms(curves, runs)
    titles = [(scatters[0], f"on {measured_on}"), (curves, "on the training batches")]
    if has_fid:
        folders = [folder for own in runs.values() for folder in own]
        titles.append((scatters[-1], _fid_title(folders, measured_on)))
    for axis, title in titles:
        axis.set_title(title, loc="left", fontsize=7, color=QUIET_COLOUR)
    if known:
        scatters[0].legend(frameon=False, fontsize=8)
    return figure


def _draw_against_kl(
    axis: Axes, ends: Mapping[str, Sequence[FinalValues | None]], column: str
) -> None:
    for number, (label, own) in enumerate(ends.items()):
        points = [(end.kl, getattr(end, column)) for end in own if end is not None]
        if points:
            kl, values = zip(*points, strict=True)
            axis.scatter(kl, values, s=18, color=COLOURS[number % len(COLOURS)], label=label)
    axis.set(xlabel="KL (nats per example)", ylabel=_LABELS[column])
    format_axis(axis)


def _draw_controlled_terms(axis: Axes, runs: SweepRuns) -> None:
    """Draw the controlled term against steps, a line per seed, with dashed targets."""
    traces = [
        (number, trace)
        for number, (label, folders) in enumerate(runs.items())
        for folder in folders
        if (trace := RunTrace.of(label, folder)).records
    ]
    for number, trace in traces:
        steps, colour = trace.column("step"), COLOURS[number % len(COLOURS)]
        axis.plot(steps, trace.column(trace.controlled), color=colour, linewidth=1)
        axis.plot(steps, trace.column("target"), "--", color=colour, linewidth=0.8)
    if traces:
        columns = [trace.column(c) for _, trace in traces for c in (trace.controlled, "target")]
        # A plain VAE has no target.
        shown = [column for column in columns if np.isfinite(column).any()]
        low, peak = min(np.nanmin(column) for column in shown), max(map(peak_after_startup, shown))
        # The first steps may lie far above the rest, so the margin is a share of what is shown.
        margin = 0.15 * (peak - low) or 1.0
        axis.set_ylim(low - margin, peak + margin)
    quantities = dict.fromkeys(QUANTITY_LABELS[trace.controlled] for _, trace in traces)
    axis.set_ylabel(f"{' or '.join(quantities)} (nats per example)")
    format_step_axis(axis)


def _measured_on(runs: SweepRuns) -> str:
    """Describe the examples all runs were evaluated on, or else the training batches."""
    folders = [folder for own in runs.values() for folder in own if folder.records()]
    evaluated = [
        metrics
        for folder in folders
        if (metrics := folder.metrics()) and metrics["step"] == _measurable_step(folder)
    ]
    examples = {format_count(metrics["examples"], metrics["split"]) for metrics in evaluated}
    is_common = len(evaluated) == len(folders) and len(examples) == 1
    return examples.pop() if is_common else _TRAINING


def _measurable_step(folder: RunFolder) -> int:
    """Return the step of the newest checkpoint, or of the log if checkpoints were deleted."""
    return latest_step(folder.checkpoints) or folder.records()[-1]["step"]


def _notes(runs: SweepRuns, measured_on: str) -> list[str]:
    folders = [folder for own in runs.values() for folder in own]
    likelihoods = dict.fromkeys(
        describe_likelihood(folder.experiment().objective.likelihood) for folder in folders
    )
    lines = [
        f"nats per example, {measured_on}; β and the response to the target: the training batches",
        f"reconstruction: {'; '.join(likelihoods)}",
    ]
    evaluated = [] if measured_on == _TRAINING else [folder.metrics() or {} for folder in folders]
    fids = (describe_fid(metrics) for metrics in evaluated)
    return lines + list(dict.fromkeys(fid for fid in fids if fid is not None))


def _fid_records(folders: Sequence[RunFolder], measured_on: str) -> list[dict[str, Any]]:
    """Return the metrics.json entry of each FID that is shown."""
    if measured_on == _TRAINING:
        return []
    entries = [(folder.metrics() or {}).get("fid", {}) for folder in folders]
    return [fid for fid in entries if "samples" in fid]


def _fid_fields(folders: Sequence[RunFolder], measured_on: str) -> list[str]:
    """Return what the FIDs depend on, one text per column; differing values are joined."""
    fids = _fid_records(folders, measured_on)
    return ["; ".join(dict.fromkeys(str(fid[name]) for fid in fids)) for name in _FID_FIELDS]


def _fid_title(folders: Sequence[RunFolder], measured_on: str) -> str:
    titles = (
        f"{fid['pictures']:,} samples against "
        f"{format_count(fid['reference_pictures'], fid['split'])}"
        for fid in _fid_records(folders, measured_on)
    )
    return " or ".join(dict.fromkeys(titles))


def _final_values(folder: RunFolder, measured_on: str) -> FinalValues | None:
    records, metrics = folder.records(), folder.metrics() or {}
    if not records:
        return None
    numbers = {
        name: mean_of_last_tenth(records, name) for name in ("kl", "reconstruction", "elbo", "beta")
    }
    if measured_on == _TRAINING:
        return FinalValues(**numbers, fid=np.nan)
    numbers |= {name: metrics[name] for name in ("kl", "reconstruction", "elbo")}
    fid = look_up(metrics, "fid.samples.score")
    return FinalValues(**numbers, fid=np.nan if fid is None else fid)


def _control_response(folders: Sequence[RunFolder]) -> ControlResponse | None:
    responses = [
        response for folder in folders if (response := measure_step_response(folder)) is not None
    ]
    if not responses:
        return None
    settled = [response["settling_time"] for response in responses]
    error, overshoot = (
        float(np.mean([response[name] for response in responses]))
        for name in ("steady_state_error", "overshoot")
    )
    return ControlResponse(error, overshoot, None if None in settled else max(settled))


def _describe_response(response: ControlResponse | None) -> str:
    if response is None:
        return ""
    settled = "not settled" if response.settled is None else f"settled at {response.settled:,.0f}"
    return (
        f"; in training {100 * response.error:+.2f} % off target, "
        f"overshoot {100 * response.overshoot:.0f} %, {settled}"
    )


def _pair_with_baseline(
    runs: SweepRuns,
    ends: Mapping[str, Sequence[FinalValues | None]],
    plain: str,
    measured_on: str,
) -> list[BaselinePair]:
    """Pair every run with the plain VAE of its seed."""
    seeds = [folder.experiment().training.seed for folder in runs[plain]]
    latents = [_used_latents(folder, measured_on) for folder in runs[plain]]
    return [
        BaselinePair(
            label, seed, vae.kl, end.kl - vae.kl, vae.reconstruction - end.reconstruction, used
        )
        for label, own in ends.items()
        if label != plain
        for seed, used, vae, end in zip(seeds, latents, ends[plain], own, strict=True)
        if vae is not None and end is not None
    ]


def _used_latents(folder: RunFolder, measured_on: str) -> int | None:
    """Return the number of latents that a run uses on the examples of the other numbers."""
    records = folder.records()
    source = (folder.metrics() or {}) if measured_on != _TRAINING else (records or [{}])[-1]
    return count_latents(source.get("kl_per_latent"))


def _format_csv(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.6g}"
