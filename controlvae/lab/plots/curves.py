"""Curves of one or several runs, drawn from their logs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.diagnostics.collapse import UNUSED
from controlvae.lab.config.experiment import QUANTITY_LABELS
from controlvae.lab.plots.mutual_information import latent_name
from controlvae.lab.runs.folder import RunFolder

# Okabe & Ito's, told apart by colour-blind readers; their yellow is too faint on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
_MOST_POINTS = 1_500
_MOST_NAMED = 12  # latents: a legend of more runs off its figure
_MOST_AMONG = 4  # lines with their legend among them: a longer one would cover them


@dataclass(frozen=True)
class Trace:
    """A run's log under the name it has in a legend."""

    name: str
    records: list[dict[str, Any]]
    held: str = "kl"  # the column that the weight multiplies
    steered: str = "kl"  # the column that a set point belongs to

    @classmethod
    def of(cls, name: str, folder: RunFolder) -> "Trace":
        experiment = folder.experiment()
        return cls(
            name,
            folder.records(),
            experiment.objective.controlled_quantity,
            experiment.controlled_quantity,
        )

    def column(self, name: str) -> np.ndarray:
        """(records,), or (records, latents) for `kl_per_latent`; what is not a number is NaN."""
        return np.array(
            [np.nan if r[name] is None else r[name] for r in self._thinned()], dtype=np.float64
        )

    def _thinned(self) -> list[dict[str, Any]]:
        return self.records[:: -max(1, len(self.records) // _MOST_POINTS)][
            ::-1
        ]  # the last one is among them


def held_figure(traces: Sequence[Trace], held: str = "kl") -> Figure:
    """What a controller holds (the KL, or `tc`, the total correlation) in each run, and the set point it was given."""
    figure, axis = _axes(f"{QUANTITY_LABELS[held]} (nats per example)")
    drawn: list[Trace] = []  # seeds of one run share their set point: one line says it
    for place, trace in enumerate(traces):
        axis.plot(
            trace.column("step"),
            trace.column(held),
            label=trace.name,
            linewidth=1.4,
            **_run_look(place),
        )
    given = [
        (colour, trace)
        for colour, trace in zip(_cycle(len(traces)), traces, strict=True)
        if trace.steered == held and np.isfinite(trace.column("target")).any()
    ]
    for colour, trace in sorted(given, key=lambda one: -one[1].records[-1]["step"]):
        if not any(_same_target(trace, other) for other in drawn):
            shared = sum(_same_target(trace, other) for _, other in given) > 1
            ink, label = ("black", "target") if shared else (colour, f"target of {trace.name}")
            axis.plot(
                trace.column("step"),
                trace.column("target"),
                "--",
                color=ink,
                linewidth=1,
                label=label,
            )
            drawn.append(trace)
    lines = [trace.column(held) for trace in traces] + [trace.column("target") for trace in drawn]
    late = max(late_peak(line) for line in lines)
    top = late + 0.15 * abs(late) or 1.0  # an estimated total correlation may lie below zero
    axis.set_ylim(bottom=min(0.0, 1.1 * min(float(np.nanmin(line)) for line in lines)), top=top)
    _say_what_is_cut(axis, traces, held)
    _legend(figure, axis)
    return figure


def _say_what_is_cut(axis: Axes, traces: Sequence[Trace], held: str) -> None:
    peak = max(float(np.nanmax(trace.column(held))) for trace in traces)
    if peak > axis.get_ylim()[1]:
        axis.set_title(
            f"a first peak of {peak:.3g} nats is cut off", loc="left", fontsize=8, color="#55656f"
        )


def _same_target(trace: Trace, other: Trace) -> bool:
    """At the steps that both have: a run that is still training shares its set point with one that has ended."""
    mine, theirs = (
        {record["step"]: record["target"] for record in each.records} for each in (trace, other)
    )
    both = mine.keys() & theirs.keys()
    return bool(both) and all(mine[step] == theirs[step] for step in both)


def beta_figure(traces: Sequence[Trace], logarithmic: bool = False) -> Figure:
    """The weight; for a single run, with its proportional and integral parts.

    Of a `logarithmic` law these are parts of log β, and would dwarf it: the weight alone, on an axis of its kind.
    """
    figure, axis = _axes("β(t)")
    for place, trace in enumerate(traces):
        label = f"{trace.name}: β"
        axis.plot(
            trace.column("step"),
            trace.column("beta"),
            label=label,
            linewidth=1.4,
            **_run_look(place),
        )
    if logarithmic:
        log_scale(axis)
    elif len(traces) == 1 and np.isfinite(traces[0].column("target")).any():
        parts = (("p", ":", COLOURS[1], "P, proportional"), ("i", "--", COLOURS[4], "I, integral"))
        for name, style, colour, label in parts:
            axis.plot(
                traces[0].column("step"),
                traces[0].column(name),
                style,
                color=colour,
                linewidth=1,
                label=label,
            )
    if not logarithmic:
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    _legend(figure, axis)
    return figure


def simulation_figure(traces: Sequence[Trace], real: Trace | None = None) -> Figure:
    """What laws would do with a plant: what is held above, the weight below; in grey the run it was fitted to."""
    held = traces[0].held
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    lines = [
        (trace, colour, 1.4) for trace, colour in zip(traces, _cycle(len(traces)), strict=True)
    ]
    for trace, colour, width in [*([(real, "#9aa5ab", 1.8)] if real else []), *lines]:
        above.plot(
            trace.column("step"),
            trace.column(held),
            color=colour,
            linewidth=width,
            label=trace.name,
        )
        below.plot(trace.column("step"), trace.column("beta"), color=colour, linewidth=width)
    targets = {
        tuple(trace.column("target")): trace
        for trace in traces
        if np.isfinite(trace.column("target")).any()
    }
    for number, trace in enumerate(targets.values()):
        label = "target" if number == 0 else None
        above.plot(
            trace.column("step"),
            trace.column("target"),
            "--",
            color="black",
            linewidth=1,
            label=label,
        )
    peaks = [late_peak(trace.column(held)) for trace in [*traces, *([real] if real else [])]]
    above.set_ylim(0, 1.15 * max(peaks))
    _say_what_is_cut(above, [*traces, *([real] if real else [])], held)
    above.set_ylabel(f"{QUANTITY_LABELS[held]} (nats per example)")
    below.set_ylabel("β(t)")
    below.set_ylim(bottom=0)
    for axis in (above, below):
        step_axis(axis)
    above.set_xlabel("")
    above.legend(frameon=False)
    return figure


def reconstruction_figure(traces: Sequence[Trace]) -> Figure:
    """-log p(x|z) on the training batches."""
    figure, axis = _axes("reconstruction (nats per example)")
    for place, trace in enumerate(traces):
        style = _run_look(place)
        axis.plot(
            trace.column("step"),
            trace.column("reconstruction"),
            label=trace.name,
            linewidth=1.4,
            **style,
        )
        if trace.steered == "reconstruction":
            axis.plot(
                trace.column("step"),
                trace.column("target"),
                "--",
                color=style["color"],
                linewidth=1,
            )
    if all(
        (trace.column("reconstruction") > 0).all() for trace in traces
    ):  # the nats of a density may be below zero
        log_scale(axis)
    _legend(figure, axis)
    return figure


def critic_figure(trace: Trace) -> Figure:
    """How well the critic behind the total correlation tells joint from shuffled latents: at 0.5, not at all."""
    figure, axis = _axes("critic's accuracy")
    axis.plot(
        trace.column("step"), trace.column("critic_accuracy"), color=COLOURS[0], linewidth=1.4
    )
    axis.axhline(0.5, linestyle="--", color="black", linewidth=1)
    return figure


def latents_figure(trace: Trace, factors: Sequence[str | None] = ()) -> Figure:
    """KL of each latent over training: factors appear one by one. `factors` names the latents, where known."""
    figure, axis = _axes("")
    draw_latents(axis, trace, factors)
    axis.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_latents(
    axis: Axes, trace: Trace, factors: Sequence[str | None] = (), linewidth: float = 1.2
) -> None:
    """The latents most in use at the end, by KL, each with a colour and a dash of its own; the others in grey."""
    steps, per_latent = (
        trace.column("step"),
        trace.column("kl_per_latent"),
    )  # (records,), (records, latents)
    order = np.argsort(-per_latent[-1])
    used = order[per_latent[-1, order] >= UNUSED]
    named = used if len(used) <= _MOST_NAMED else used[: _MOST_NAMED - 1]
    for place, latent in enumerate(named):
        name = latent_name(int(latent), factors)
        axis.plot(steps, per_latent[:, latent], linewidth=linewidth, label=name, **look(place))
    more, unused = used[len(named) :], order[len(used) :]
    for latents, colour, words in (
        (more, "#7d8a91", "more in use"),
        (unused, "#b8c0c4", "not in use"),
    ):
        for place, latent in enumerate(latents):
            label = f"{len(latents)} {words}" if place == 0 else None
            axis.plot(
                steps,
                per_latent[:, latent],
                color=colour,
                linewidth=0.7 * linewidth,
                label=label,
                zorder=1,
            )
    axis.set_ylim(bottom=0, top=1.15 * late_peak(per_latent))
    axis.set_ylabel("KL per latent (nats)")


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.set_ylabel(label)
    step_axis(axis)
    return figure, axis


def look(place: int) -> dict[str, Any]:
    """Colour and dash of a line: where two coincide, as x and y often do, the upper lets the lower be seen."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": _DASHES[place % len(_DASHES)]}


def _run_look(place: int) -> dict[str, Any]:
    """Colour and dash of a run's line: whole as long as there are colours, because a set point is dashed."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": _DASHES[place // len(COLOURS) % len(_DASHES)],
    }


def _legend(figure: Figure, axis: Axes) -> None:
    """Of a few lines among them; of more above them, in a figure that is the higher for it."""
    handles, labels = axis.get_legend_handles_labels()
    if len(handles) <= _MOST_AMONG:
        axis.legend(frameon=False)
        return
    columns = 2 if max(map(len, labels)) <= 50 else 1  # characters that fit into half a figure
    figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(len(handles) / columns))
    figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=8
    )


def step_axis(axis: Axes) -> None:
    """The look of every curve against steps."""
    axis.set_xlabel("training step")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))


def log_scale(axis: Axes) -> None:
    """A logarithmic axis with plain numbers on it."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())


def late_peak(values: np.ndarray) -> float:
    """The largest value after the first twentieth: a spike in the first steps must not flatten the whole picture."""
    late = values[len(values) // 20 :]
    return float(np.nanmax(late)) if np.isfinite(late).any() else 0.0


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]
