"""Curves of one or several runs, plotted from their logs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.diagnostics.collapse import USED_LATENT_NATS
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.plots.mutual_information import format_latent
from controlvae.lab.plots.style import (
    COLOURS,
    FAINT_COLOUR,
    QUIET_COLOUR,
    add_legend,
    cycle_colours,
    format_step_axis,
    line_style,
    make_step_figure,
    peak_after_startup,
    run_style,
    set_log_scale,
)
from controlvae.lab.runs.folder import RunFolder

_MAX_POINTS = 1_500  # of a curve
_MAX_NAMED_LATENTS = 12  # a longer legend does not fit its figure
_OTHER_LATENTS_COLOUR = "#7d8a91"
_UNUSED_LATENTS_COLOUR = "#b8c0c4"


@dataclass(frozen=True)
class RunTrace:
    """The log of a run, with the name it has in a legend."""

    name: str
    records: list[dict[str, Any]]
    weighted: str = "kl"  # the log column of the term that β multiplies
    controlled: str = "kl"  # the log column that the target refers to

    @classmethod
    def of(cls, name: str, folder: RunFolder) -> "RunTrace":
        """Read the log of a run folder."""
        experiment = folder.experiment()
        return cls(
            name,
            folder.records(),
            experiment.objective.controlled_quantity,
            experiment.controlled_quantity,
        )

    def column(self, name: str) -> np.ndarray:
        """Return a log column, thinned to at most about 1,500 points; None becomes NaN.

        The shape is (records,), or (records, latents) for `kl_per_latent`.
        """
        values = [np.nan if r[name] is None else r[name] for r in self._thinned()]
        return np.array(values, dtype=np.float64)

    @property
    def has_target(self) -> bool:
        """True if the law of the run has a target."""
        return bool(np.isfinite(self.column("target")).any())

    def _thinned(self) -> list[dict[str, Any]]:
        # Counted from the end, so that the last record is always kept.
        every = max(1, len(self.records) // _MAX_POINTS)
        return self.records[::-every][::-1]


def plot_controlled_term(traces: Sequence[RunTrace], column: str = "kl") -> Figure:
    """Plot a controlled term of several runs against its targets.

    Args:
        traces: The runs.
        column: Log column of the term, "kl" or "tc" (total correlation).
    """
    figure, axis = make_step_figure(f"{QUANTITY_LABELS[column]} (nats per example)")
    for trace, line in _style_runs(traces):
        axis.plot(trace.column("step"), trace.column(column), **line)
    drawn = _draw_targets(axis, traces, column)
    lines = [trace.column(column) for trace in traces]
    lines += [trace.column("target") for trace in drawn]
    late = max(peak_after_startup(line) for line in lines)
    top = late + 0.15 * abs(late) or 1.0  # an estimated total correlation may lie below zero
    axis.set_ylim(bottom=min(0.0, 1.1 * min(float(np.nanmin(line)) for line in lines)), top=top)
    _note_clipped_peak(axis, traces, column)
    add_legend(figure, axis)
    return figure


def _style_runs(traces: Sequence[RunTrace]) -> Iterator[tuple[RunTrace, dict[str, Any]]]:
    """Yield each run with its line style. Runs of one name share a style and a legend entry."""
    places: dict[str, int] = {}
    for trace in traces:
        is_first = trace.name not in places
        style = run_style(places.setdefault(trace.name, len(places)))
        label = trace.name if is_first else "_"  # matplotlib leaves such labels out of the legend
        yield trace, {"label": label, "linewidth": 1.4, **style}


def _draw_targets(axis: Axes, traces: Sequence[RunTrace], column: str) -> list[RunTrace]:
    """Draw each distinct target once, and return the runs whose targets were drawn.

    Seeds of one experiment share their target. It is drawn as long as the longest of them.
    """
    drawn: list[RunTrace] = []
    targeted = [
        (colour, trace)
        for colour, trace in zip(cycle_colours(len(traces)), traces, strict=True)
        if trace.controlled == column and trace.has_target
    ]
    for run_colour, trace in sorted(targeted, key=lambda pair: -pair[1].records[-1]["step"]):
        if any(_has_same_target(trace, other) for other in drawn):
            continue
        is_shared = sum(_has_same_target(trace, other) for _, other in targeted) > 1
        label = "target" if is_shared else f"target of {trace.name}"
        colour = "black" if is_shared else run_colour
        steps, values = trace.column("step"), trace.column("target")
        axis.plot(steps, values, "--", color=colour, linewidth=1, label=label)
        drawn.append(trace)
    return drawn


def _note_clipped_peak(axis: Axes, traces: Sequence[RunTrace], column: str) -> None:
    peak = max(float(np.nanmax(trace.column(column))) for trace in traces)
    if peak > axis.get_ylim()[1]:
        note = f"an initial peak of {peak:.3g} nats is clipped"
        axis.set_title(note, loc="left", fontsize=8, color=QUIET_COLOUR)


def _has_same_target(trace: RunTrace, other: RunTrace) -> bool:
    """Return True if two runs have equal targets at all steps that both have logged."""
    first, second = (
        {record["step"]: record["target"] for record in each.records} for each in (trace, other)
    )
    common = first.keys() & second.keys()
    return bool(common) and all(first[step] == second[step] for step in common)


def plot_beta(traces: Sequence[RunTrace], logarithmic: bool = False) -> Figure:
    """Plot β, and for a single run its proportional and integral terms.

    Args:
        traces: The runs.
        logarithmic: True for a law of log β. Its terms are those of log β and would dwarf β, so
            they are left out, and the axis is logarithmic.
    """
    figure, axis = make_step_figure("β(t)")
    for trace, line in _style_runs(traces):
        line["label"] = "β" if len(traces) == 1 else line["label"]
        axis.plot(trace.column("step"), trace.column("beta"), **line)
    if logarithmic:
        set_log_scale(axis)
    else:
        if len(traces) == 1 and traces[0].has_target:
            _draw_terms(axis, traces[0])
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    add_legend(figure, axis)
    return figure


def _draw_terms(axis: Axes, trace: RunTrace) -> None:
    terms = (("p", ":", COLOURS[1], "P, proportional"), ("i", "--", COLOURS[4], "I, integral"))
    for name, style, colour, label in terms:
        steps, values = trace.column("step"), trace.column(name)
        axis.plot(steps, values, style, color=colour, linewidth=1, label=label)


def plot_simulation(traces: Sequence[RunTrace], real: RunTrace | None = None) -> Figure:
    """Plot simulated laws: the controlled term above, β below.

    Args:
        traces: One simulated run per law.
        real: The run the plant was fitted to, drawn in grey.
    """
    column = traces[0].weighted
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    lines = [] if real is None else [(real, FAINT_COLOUR, 1.8)]
    lines += [
        (t, colour, 1.4) for t, colour in zip(traces, cycle_colours(len(traces)), strict=True)
    ]
    for trace, colour, width in lines:
        steps, values = trace.column("step"), trace.column(column)
        above.plot(steps, values, color=colour, linewidth=width, label=trace.name)
        below.plot(steps, trace.column("beta"), color=colour, linewidth=width)
    targets = {tuple(trace.column("target")): trace for trace in traces if trace.has_target}
    for number, trace in enumerate(targets.values()):
        label = "target" if number == 0 else None
        steps, values = trace.column("step"), trace.column("target")
        above.plot(steps, values, "--", color="black", linewidth=1, label=label)
    shown = [trace for trace, _, _ in lines]
    above.set_ylim(0, 1.15 * max(peak_after_startup(trace.column(column)) for trace in shown))
    _note_clipped_peak(above, shown, column)
    below.set_ylim(bottom=0)
    for axis in (above, below):
        format_step_axis(axis)
    above.set(xlabel="", ylabel=f"{QUANTITY_LABELS[column]} (nats per example)")
    below.set_ylabel("β(t)")
    above.legend(frameon=False)
    return figure


def plot_reconstruction(traces: Sequence[RunTrace]) -> Figure:
    """Plot the reconstruction error -log p(x|z) on the training batches."""
    figure, axis = make_step_figure("reconstruction (nats per example)")
    for trace, line in _style_runs(traces):
        steps = trace.column("step")
        axis.plot(steps, trace.column("reconstruction"), **line)
        if trace.controlled == "reconstruction":
            axis.plot(steps, trace.column("target"), "--", color=line["color"], linewidth=1)
    # The negative logarithm of a density may lie below zero.
    if all((trace.column("reconstruction") > 0).all() for trace in traces):
        set_log_scale(axis)
    add_legend(figure, axis)
    return figure


def plot_critic_accuracy(trace: RunTrace) -> Figure:
    """Plot the accuracy of the total-correlation critic; 0.5 is the accuracy of guessing."""
    figure, axis = make_step_figure("accuracy of the critic")
    steps, values = trace.column("step"), trace.column("critic_accuracy")
    axis.plot(steps, values, color=COLOURS[0], linewidth=1.4)
    axis.axhline(0.5, linestyle="--", color="black", linewidth=1)
    return figure


def plot_latent_kl(trace: RunTrace, factors: Sequence[str | None] = ()) -> Figure:
    """Plot the KL of each latent over training.

    Args:
        trace: The run.
        factors: Factor names of the latents, where known.
    """
    figure, axis = make_step_figure("")
    draw_latent_kl(axis, trace, factors)
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_latent_kl(
    axis: Axes, trace: RunTrace, factors: Sequence[str | None] = (), linewidth: float = 1.2
) -> None:
    """Draw the KL of each latent: in colour for the largest at the end, in grey for the others.

    Args:
        axis: The axis to draw on.
        trace: The run.
        factors: Factor names of the latents, where known.
        linewidth: Width of the coloured lines, in points.
    """
    steps = trace.column("step")
    per_latent = trace.column("kl_per_latent")  # (records, latents)
    order = np.argsort(-per_latent[-1])
    used = order[per_latent[-1, order] >= USED_LATENT_NATS]
    named = used if len(used) <= _MAX_NAMED_LATENTS else used[: _MAX_NAMED_LATENTS - 1]
    for place, latent in enumerate(named):
        label = format_latent(int(latent), factors)
        axis.plot(
            steps, per_latent[:, latent], linewidth=linewidth, label=label, **line_style(place)
        )
    others, unused = used[len(named) :], order[len(used) :]
    for latents, colour, description in (
        (others, _OTHER_LATENTS_COLOUR, "others"),
        (unused, _UNUSED_LATENTS_COLOUR, f"below {USED_LATENT_NATS:g} nats"),
    ):
        for place, latent in enumerate(latents):
            axis.plot(
                steps,
                per_latent[:, latent],
                color=colour,
                linewidth=0.7 * linewidth,
                label=f"{len(latents)} {description}" if place == 0 else None,
                zorder=1,
            )
    axis.set_ylim(bottom=0, top=1.15 * peak_after_startup(per_latent))
    axis.set_ylabel("KL per latent (nats)")
