"""Figures of a rate-distortion curve: the curve, and images along it."""

from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.evaluation.rate_curve import CurvePoint, RateCurve
from controlvae.lab.plots.image_grid import CELL_INCHES, draw_grid, to_channels_last
from controlvae.lab.plots.style import COLOURS, QUIET_COLOUR, format_axis, set_log_scale
from controlvae.lab.runs.loaded import (
    LoadedRun,
    as_pixels,
    decode_codes,
    image_model,
    on_unseen_examples,
    prior_codes,
    select_examples,
)

_EXAMPLES_SHOWN = 3  # examples, and as many samples


def plot_rate_curve(curve: RateCurve) -> Figure:
    """Plot distortion, ELBO, the price of a nat and the error of the rate against the rate."""
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    (distortion, bound), (price, error) = figure.subplots(2, 2)
    _plot(distortion, curve, "reconstruction", "reconstruction loss (nats)")
    set_log_scale(distortion)
    _plot(bound, curve, "elbo", "ELBO (nats)")
    best = curve.best
    bound.axvline(best.kl, color=QUIET_COLOUR, linewidth=0.8, linestyle=":")
    bound.annotate(
        f"best at {best.rate:.3g} nats",
        (best.kl, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        horizontalalignment="right",
        fontsize=8,
        color=QUIET_COLOUR,
    )
    if any(point.fid is not None for point in curve.points):
        _plot(price, curve, "fid", "FID of samples")
    else:
        _plot(price, curve, "price", "price of a nat (nats)")
        set_log_scale(price)
    rates, errors = zip(*((point.rate, 100 * point.error) for point in curve.points), strict=True)
    error.axhspan(-1, 1, color=COLOURS[2], alpha=0.12, linewidth=0, label="within 1 %")
    error.axhline(0, color=QUIET_COLOUR, linewidth=0.8)
    error.plot(rates, errors, "o-", color=COLOURS[0], markersize=3, linewidth=1)
    error.set_ylabel("measured KL, off by (%)")
    error.legend(frameon=False, fontsize=8)
    _format_rates(error)
    if curve.separate:
        distortion.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{curve.examples:,} examples ({curve.split})", fontsize=8, color=QUIET_COLOUR)
    return figure


def _plot(axis: Axes, curve: RateCurve, name: str, label: str) -> None:
    """Plot one quantity of the curve, and of separate trainings next to it."""
    rates, values = _columns(curve.points, name)
    label_points = "a network each" if curve.of_separate_networks else "one network"
    axis.plot(
        rates, values, "o-", color=COLOURS[0], markersize=3, linewidth=1.2, label=label_points
    )
    if curve.separate:
        rates, values = _columns(curve.separate, name)
        axis.plot(rates, values, "D", color=COLOURS[1], markersize=5, label="trained separately")
    axis.set_ylabel(label)
    _format_rates(axis)


def _columns(points: Sequence[CurvePoint], name: str) -> tuple[list[float], list[float]]:
    known = [point for point in points if getattr(point, name) is not None]
    return [point.kl for point in known], [getattr(point, name) for point in known]


def _format_rates(axis: Axes) -> None:
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 3, 5)))
    axis.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:g}"))
    axis.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axis.set_xlabel("KL (nats)")
    format_axis(axis)


def plot_search_path(
    stages: Sequence[tuple[str, Sequence[float], Sequence[float]]], target: float, objective: str
) -> Figure:
    """Plot the objective over the rate at each stage of a search for the best set point.

    Args:
        stages: Name, rates and scores of each stage. Scores of FID are negative.
        target: Best rate.
        objective: Name of the objective.
    """
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axis = figure.subplots()
    sign = -1 if objective == "FID" else 1
    for place, (name, rates, scores) in enumerate(stages):
        values = [sign * score for score in scores]
        axis.plot(rates, values, "o-", color=COLOURS[place], markersize=3, linewidth=1, label=name)
    axis.axvline(target, color=QUIET_COLOUR, linewidth=0.8, linestyle=":")
    axis.set_title(f"best at {target:.3g} nats", fontsize=8, color=QUIET_COLOUR)
    axis.set_ylabel(objective)
    axis.legend(frameon=False, fontsize=8)
    _format_rates(axis)
    return figure


@torch.no_grad()
def plot_images_along(
    curve: RateCurve, run_of: Callable[[CurvePoint], LoadedRun], columns: int = 9
) -> Figure:
    """Plot reconstructions and samples at rates from the lowest to the highest.

    Args:
        curve: Measured curve.
        run_of: Returns the run over images at a point of the curve.
        columns: Number of rates.
    """
    run = run_of(curve.points[0])
    unseen = on_unseen_examples(run)
    x = unseen.examples.batch(select_examples(unseen, _EXAMPLES_SHOWN))
    codes = prior_codes(run, _EXAMPLES_SHOWN)
    places = np.linspace(0, len(curve.points) - 1, min(columns, len(curve.points))).round()
    chosen = [curve.points[int(place)] for place in places]
    images = [torch.cat([as_pixels(run, x), torch.ones_like(as_pixels(run, x))])]
    for point in chosen:
        fixed = run_of(point)
        rebuilt = decode_codes(fixed, image_model(fixed).encode(x).mean)
        images.append(torch.cat([rebuilt, decode_codes(fixed, codes)]))
    grid = to_channels_last(torch.stack(images, dim=1))
    width, height = CELL_INCHES * grid.shape[1] + 1.4, CELL_INCHES * grid.shape[0] + 0.5
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    rows = ["reconstruction", *[""] * (_EXAMPLES_SHOWN - 1)]
    rows += ["sample", *[""] * (_EXAMPLES_SHOWN - 1)]
    draw_grid(axis, grid, rows, ["data", *[f"{point.rate:.3g}" for point in chosen]])
    axis.set_xlabel(f"KL in nats ({unseen.examples.split})", fontsize=8)
    return figure
