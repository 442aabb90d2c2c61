"""A sweep's runs side by side: reconstruction and ELBO against the KL each ended at, and how they came there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.config import describe_likelihood
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.evaluation.elbo import measure_step_response
from controlvae.lab.evaluation.images import describe_fid
from controlvae.lab.io import write_csv
from controlvae.lab.plots.curves import Trace
from controlvae.lab.plots.figure_files import save_figure
from controlvae.lab.plots.style import COLOURS, format_step_axis, peak_after_startup
from controlvae.lab.reports.elbo_bound import BaselinePair, write_elbo_bound
from controlvae.lab.runs.checkpoint import latest_step
from controlvae.lab.runs.folder import RunFolder, look_up, mean_of_last_tenth
from controlvae.lab.runs.loaded import format_count

Runs = Mapping[str, Sequence[RunFolder]]  # each setting's seeds
_TRAINING = "the training batches, means over the last tenth or log line"
_LABELS = {
    "reconstruction": "reconstruction (nats per example)",
    "elbo": "ELBO (nats per example)",
    "fid": "FID",
}
_FID_IS_OF = (
    "pictures",
    "reference_pictures",
    "split",
    "extractor",
    "resize",
)  # an FID says little without them


class FinalValues(NamedTuple):
    """Where a run ended, in nats per example; FID is of its samples, NaN where it was not measured."""

    kl: float
    reconstruction: float
    elbo: float
    beta: float
    fid: float


class ControlResponse(NamedTuple):
    """How a setting's seeds answered their set point in training: means; the step from which all stay within 2 %."""

    error: float
    overshoot: float
    settled: float | None


def write_sweep(runs: Runs, out: Path, plain: str | None = None) -> list[str]:
    """Writes `sweep.csv` and `sweep.png` into the sweep's folder; returns the table and where it went, as lines.

    Where every run has been evaluated the numbers are those of `evaluate`, else those of the log; β and the way to a
    set point are always those of the log. `plain` is the setting of the plain VAE, where there is one: what the others
    gain over it then goes into `theorem.csv` and `.png`.
    """
    measured_on = _measured_on(runs)
    ends = {
        label: [_end(folder, measured_on) for folder in folders] for label, folders in runs.items()
    }
    heads = [f"{name} {what}" for name in FinalValues._fields for what in ("mean", "sd")]
    fid_heads = [f"fid {name.replace('_', ' ')}" for name in _FID_IS_OF]
    response_heads = [
        f"{name} in training" for name in ("off target", "overshoot", "settled at step")
    ]
    rows: list[list[Any]] = []
    lines = []
    for label, folders in runs.items():
        own = np.array([end for end in ends[label] if end is not None])
        if len(own) == 0:
            lines.append(f"{label}: nothing trained yet")
            continue
        mean, sd = (
            own.mean(0),
            own.std(0, ddof=1) if len(own) > 1 else np.full(len(FinalValues._fields), np.nan),
        )
        steps = min(_measurable_step(folder) for folder in folders if folder.records())
        response = _response(folders)
        numbers = [value for pair in zip(mean, sd, strict=True) for value in pair]
        rows.append(
            [
                label,
                len(own),
                steps,
                measured_on,
                *map(_rounded, numbers),
                *_fid_is_of(folders, measured_on),
                *map(_rounded, response or [None] * 3),
            ]
        )
        shown = (
            (name, value)
            for name, value in zip(FinalValues._fields, mean, strict=True)
            if not np.isnan(value)
        )
        words = "  ".join(f"{name} {value:.3f}" for name, value in shown)
        seeds = f"{len(own)} seed{'s' if len(own) > 1 else ' '}"
        lines.append(f"{label:24s} {seeds}  step {steps:,}  {words}{_words(response)}")
    heads = ["setting", "seeds", "steps", "measured on", *heads, *fid_heads, *response_heads]
    write_csv(out / "sweep.csv", heads, rows)
    save_figure(plot_sweep(runs, ends, measured_on), out / "sweep.png")
    lines += [*_notes(runs, measured_on), f"written to {out / 'sweep.csv'} and .png"]
    return (
        lines
        if plain is None
        else lines + write_elbo_bound(_pairs(runs, ends, plain), list(ends), measured_on, out)
    )


def plot_sweep(
    runs: Runs, ends: Mapping[str, Sequence[FinalValues | None]], measured_on: str
) -> Figure:
    """Rate-distortion, ELBO and, where it was measured, FID against KL, a point for every seed; then the way there."""
    found = [end for own in ends.values() for end in own if end is not None]
    columns = [
        "reconstruction",
        "elbo",
        *(["fid"] if not np.isnan([end.fid for end in found]).all() else []),
    ]
    figure = Figure(figsize=(3.6 * (len(columns) + 1), 3.2), layout="constrained")
    *against, way = figure.subplots(1, len(columns) + 1)
    for axis, column in zip(against, columns, strict=True):
        for number, (label, own) in enumerate(ends.items()):
            points = np.array(
                [(end.kl, getattr(end, column)) for end in own if end is not None]
            ).reshape(-1, 2)
            if len(points):
                axis.scatter(*points.T, s=18, color=COLOURS[number % len(COLOURS)], label=label)
        axis.set(xlabel="KL (nats per example)", ylabel=_LABELS[column])
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    _draw_way(way, runs)
    titles = [(against[0], f"on {measured_on}"), (way, "on the training batches")]
    if "fid" in columns:
        titles.append(
            (
                against[-1],
                _fid_title([folder for own in runs.values() for folder in own], measured_on),
            )
        )
    for axis, words in titles:
        axis.set_title(words, loc="left", fontsize=7, color="#55656f")
    if found:
        against[0].legend(frameon=False, fontsize=8)
    return figure


def _draw_way(axis: Axes, runs: Runs) -> None:
    """What is held against steps, a line for every seed, and dashed its set point."""
    traces = [
        (number, trace)
        for number, (label, folders) in enumerate(runs.items())
        for folder in folders
        if (trace := Trace.of(label, folder)).records
    ]
    for number, trace in traces:
        steps, colour = trace.column("step"), COLOURS[number % len(COLOURS)]
        axis.plot(steps, trace.column(trace.controlled), color=colour, linewidth=1)
        axis.plot(steps, trace.column("target"), "--", color=colour, linewidth=0.8)
    if traces:
        columns = [
            trace.column(name) for _, trace in traces for name in (trace.controlled, "target")
        ]
        shown = [
            column for column in columns if np.isfinite(column).any()
        ]  # a plain VAE has no set point
        low, peak = min(np.nanmin(column) for column in shown), max(map(peak_after_startup, shown))
        margin = (
            0.15 * (peak - low) or 1.0
        )  # of what is shown: the first steps may lie far above it
        axis.set_ylim(low - margin, peak + margin)
    held = dict.fromkeys(QUANTITY_LABELS[trace.controlled] for _, trace in traces)
    axis.set_ylabel(f"{' or '.join(held)} (nats per example)")
    format_step_axis(axis)


def _measured_on(runs: Runs) -> str:
    """What the numbers are of: the examples all runs were evaluated on, else the training batches."""
    folders = [folder for own in runs.values() for folder in own if folder.records()]
    fresh = [
        folder.metrics()
        for folder in folders
        if folder.evaluated_step() == _measurable_step(folder)
    ]
    words = {format_count(metrics["examples"], metrics["split"]) for metrics in fresh if metrics}
    return words.pop() if len(fresh) == len(folders) and len(words) == 1 else _TRAINING


def _measurable_step(folder: RunFolder) -> int:
    """Of its newest checkpoint, wherever its log ends; of the log where checkpoints were deleted."""
    return latest_step(folder.checkpoints) or folder.records()[-1]["step"]


def _notes(runs: Runs, measured_on: str) -> list[str]:
    """What is behind the numbers."""
    folders = [folder for own in runs.values() for folder in own]
    likelihoods = dict.fromkeys(
        describe_likelihood(folder.experiment().objective.likelihood) for folder in folders
    )
    lines = [
        f"nats per example, {measured_on}; β and the way to the set point: the training batches",
        f"reconstruction: {'; '.join(likelihoods)}",
    ]
    measured = [] if measured_on == _TRAINING else [folder.metrics() or {} for folder in folders]
    return lines + list(
        dict.fromkeys(words for metrics in measured if (words := describe_fid(metrics)) is not None)
    )


def _fids(folders: Sequence[RunFolder], measured_on: str) -> list[dict[str, Any]]:
    """The record of each FID that is shown."""
    found = (
        []
        if measured_on == _TRAINING
        else [(folder.metrics() or {}).get("fid", {}) for folder in folders]
    )
    return [fid for fid in found if "samples" in fid]


def _fid_is_of(folders: Sequence[RunFolder], measured_on: str) -> list[str]:
    """Its counts, split, network and resizing, a column each; runs that differ have theirs side by side."""
    fids = _fids(folders, measured_on)
    return ["; ".join(dict.fromkeys(str(fid[name]) for fid in fids)) for name in _FID_IS_OF]


def _fid_title(folders: Sequence[RunFolder], measured_on: str) -> str:
    of = (
        f"{fid['pictures']:,} samples against {format_count(fid['reference_pictures'], fid['split'])}"
        for fid in _fids(folders, measured_on)
    )
    return " or ".join(dict.fromkeys(of))


def _end(folder: RunFolder, measured_on: str) -> FinalValues | None:
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


def _response(folders: Sequence[RunFolder]) -> ControlResponse | None:
    each = [
        response for folder in folders if (response := measure_step_response(folder)) is not None
    ]
    if not each:
        return None
    settled = [response["settling_time"] for response in each]
    error, overshoot = (
        float(np.mean([r[name] for r in each])) for name in ("steady_state_error", "overshoot")
    )
    return ControlResponse(error, overshoot, None if None in settled else max(settled))


def _words(response: ControlResponse | None) -> str:
    if response is None:
        return ""
    settled = "not settled" if response.settled is None else f"settled at {response.settled:,.0f}"
    return f"; in training {100 * response.error:+.2f} % off target, overshoot {100 * response.overshoot:.0f} %, {settled}"


def _pairs(
    runs: Runs, ends: Mapping[str, Sequence[FinalValues | None]], plain: str
) -> list[BaselinePair]:
    """Every run beside the plain VAE of its seed."""
    seeds = [folder.experiment().training.seed for folder in runs[plain]]
    return [
        BaselinePair(label, seed, vae.kl, end.kl - vae.kl, vae.reconstruction - end.reconstruction)
        for label, own in ends.items()
        if label != plain
        for seed, vae, end in zip(seeds, ends[plain], own, strict=True)
        if vae is not None and end is not None
    ]


def _rounded(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.6g}"
