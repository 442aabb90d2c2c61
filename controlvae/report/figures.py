"""Curves of one or several runs, drawn from their logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOURS = ("#0b6e99", "#d1495b", "#5b8c5a", "#8f6bb3", "#c97b2d", "#4d4d4d", "#b05f8a", "#7a7a28")
_MOST_POINTS = 1_500


@dataclass(frozen=True)
class Trace:
    """A run's log under the name it has in a legend."""

    name: str
    records: list[dict[str, Any]]

    def column(self, name: str) -> np.ndarray:
        """(records,), or (records, latents) for `kl_per_latent`; what is not a number is NaN."""
        return np.array([np.nan if r[name] is None else r[name] for r in self._thinned()], dtype=np.float64)

    def _thinned(self) -> list[dict[str, Any]]:
        return self.records[:: max(1, len(self.records) // _MOST_POINTS)]


def kl_figure(traces: Sequence[Trace]) -> Figure:
    """KL of each run, and the set point it was given."""
    figure, axis = _axes("KL (nats per example)")
    drawn: list[np.ndarray] = []  # seeds of one run share their set point: one line says it
    for colour, trace in zip(_cycle(len(traces)), traces, strict=True):
        axis.plot(trace.column("step"), trace.column("kl"), color=colour, label=trace.name, linewidth=1.4)
    for colour, trace in zip(_cycle(len(traces)), traces, strict=True):
        target = trace.column("target")
        if np.isfinite(target).any() and not any(np.array_equal(target, other) for other in drawn):
            shared = sum(np.array_equal(target, other.column("target")) for other in traces) > 1
            label = "target" if shared else f"target of {trace.name}"
            axis.plot(trace.column("step"), target, "--", color="black" if shared else colour, linewidth=1, label=label)
            drawn.append(target)
    top = 1.15 * max(_late_peak(t.column(name)) for t in traces for name in ("kl", "target"))
    axis.set_ylim(bottom=0, top=top)
    peak = max(float(np.nanmax(trace.column("kl"))) for trace in traces)
    if peak > top:
        axis.set_title(f"a first peak of {peak:.0f} nats is cut off", loc="left", fontsize=8, color="#55656f")
    axis.legend(frameon=False)
    return figure


def beta_figure(traces: Sequence[Trace]) -> Figure:
    """The weight; for a single run, with its proportional and integral parts."""
    figure, axis = _axes("β(t)")
    for colour, trace in zip(_cycle(len(traces)), traces, strict=True):
        axis.plot(trace.column("step"), trace.column("beta"), color=colour, label=f"{trace.name}: β", linewidth=1.4)
    if len(traces) == 1 and np.isfinite(traces[0].column("target")).any():
        parts = (("p", ":", _COLOURS[1], "P, proportional"), ("i", "--", _COLOURS[4], "I, integral"))
        for name, style, colour, label in parts:
            axis.plot(traces[0].column("step"), traces[0].column(name), style, color=colour, linewidth=1, label=label)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.legend(frameon=False)
    return figure


def reconstruction_figure(traces: Sequence[Trace]) -> Figure:
    """-log p(x|z) on the training batches."""
    figure, axis = _axes("reconstruction (nats per example)")
    for colour, trace in zip(_cycle(len(traces)), traces, strict=True):
        axis.plot(trace.column("step"), trace.column("reconstruction"), color=colour, label=trace.name, linewidth=1.4)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(mpl.ticker.ScalarFormatter())
    axis.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axis.legend(frameon=False)
    return figure


def latents_figure(trace: Trace) -> Figure:
    """KL of each latent over training: factors appear one by one."""
    figure, axis = _axes("KL per latent (nats)")
    per_latent = trace.column("kl_per_latent")  # (records, latents)
    order = np.argsort(-per_latent[-1])
    colours = mpl.colormaps["tab10" if len(order) <= 10 else "viridis"](np.linspace(0, 1, len(order)))
    for colour, latent in zip(colours, order, strict=True):
        name = f"$z_{{{latent + 1}}}$"
        axis.plot(trace.column("step"), per_latent[:, latent], color=colour, linewidth=1.2, label=name)
    axis.set_ylim(bottom=0, top=1.15 * _late_peak(per_latent))
    axis.legend(frameon=False, ncols=2, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.set(xlabel="training step", ylabel=label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.xaxis.set_major_formatter(mpl.ticker.EngFormatter())
    return figure, axis


def _late_peak(values: np.ndarray) -> float:
    """The largest value after the first twentieth: a spike in the first steps must not flatten the whole picture."""
    late = values[len(values) // 20 :]
    return float(np.nanmax(late)) if np.isfinite(late).any() else 0.0


def _cycle(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]
