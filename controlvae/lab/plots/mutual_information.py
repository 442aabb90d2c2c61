"""Mutual information of factors and latents: factor names for latents, and a heat map."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controlvae.lab.plots.style import FAINT_COLOUR, QUIET_COLOUR
from controlvae.lab.runs.folder import nested_value

MIN_INFORMATION = 0.1  # nats; a latent with less about every factor is not named after one
MAX_LATENTS_SHOWN = (
    20  # rows or columns of a figure by default; most of hundreds do nothing visible
)
# RMIG comes first because it uses all factors and all examples. The sampled MIG skips factors
# without an order, such as the shape.
_ESTIMATES = ("rmig", "mig_histogram", "mig_sampled")


@dataclass(frozen=True)
class FactorInformation:
    """Mutual information of factors and latents."""

    nats: np.ndarray  # (factors, latents)
    names: list[str]  # of the factors
    entropies: np.ndarray | None  # of the factors, in nats; None in older metrics files
    estimator: str


def read_information(metrics: Mapping[str, Any]) -> FactorInformation | None:
    """Return the first estimate recorded in `metrics.json`, or None if there is none."""
    for name in _ESTIMATES:
        score = metrics.get(name, {})
        if "mutual_information" in score and isinstance(score["per_factor"], dict):
            # float64 turns None, which stands for a number JSON cannot hold, into NaN.
            nats = np.array(score["mutual_information"], dtype=np.float64)
            entropies = score.get("entropies")
            return FactorInformation(
                nats,
                list(score["per_factor"]),
                None if entropies is None else np.array(entropies, dtype=np.float64),
                score["estimator"],
            )
    return None


def scored_latent_kl(metrics: Mapping[str, Any]) -> list[float] | None:
    """Return the KL of each latent over the scored examples, or None if it was not measured."""
    kl = nested_value(metrics, "ground_truth.kl_per_latent")
    return None if kl is None or None in kl else list(kl)


def dominant_factors(metrics: Mapping[str, Any] | None) -> list[str | None]:
    """Return for each latent the factor it carries most information about.

    Information is compared as a share of the factor's entropy, as in MIG. In nats, a factor with
    many values would always win over one with few.

    Returns:
        One name per latent, None for a latent below `MIN_INFORMATION`. The list is empty if the
        mutual information was not measured.
    """
    information = None if metrics is None else read_information(metrics)
    if information is None:
        return []
    shares = information.nats
    if information.entropies is not None:
        shares = shares / information.entropies[:, None]
    shares = np.where(information.nats >= MIN_INFORMATION, shares, 0.0)
    return [
        information.names[best] if shares[best, latent] > 0 else None
        for latent, best in enumerate(shares.argmax(0))
    ]


def describe_dominant_factor(metrics: Mapping[str, Any]) -> str:
    """Return a phrase on how `dominant_factors` names a latent."""
    information = read_information(metrics)
    has_entropies = information is not None and information.entropies is not None
    measure = "as a share of the factor's entropy" if has_entropies else "in nats"
    return (
        f"the factor it carries most information about, {measure}; "
        f"none where that is below {MIN_INFORMATION:g} nats"
    )


def format_latent(latent: int, factors: Sequence[str | None]) -> str:
    """Format a latent as `x, z₉`, or `z₉` without a known factor. Labels count from 1."""
    symbol = "z" + str(latent + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    factor = factors[latent] if factors else None
    return f"{factor}, {symbol}" if factor else symbol


def plot_mutual_information(metrics: Mapping[str, Any]) -> Figure | None:
    """Plot a heat map of factors against the latents of largest KL.

    Every cell shows its number, so there is no colour bar. The cells are drawn as a mesh instead
    of an image, which stays sharp at any size.

    Returns:
        The figure, or None if the mutual information was not measured.
    """
    information = read_information(metrics)
    if information is None:
        return None
    # Older metrics files have only the KL over the examples of the ELBO.
    kl = np.array(scored_latent_kl(metrics) or metrics["kl_per_latent"])
    order = np.argsort(-kl)[:MAX_LATENTS_SHOWN]
    longest_name = max(len(name) for name in information.names)
    width = max(0.46 * len(order) + 0.08 * longest_name + 0.2, 3.0)  # inches
    title = [
        "Mutual information of factors and latents (nats).",
        *textwrap.wrap(f"Estimated as for {information.estimator}", int(width / 0.06)),
    ]
    height = 0.32 * len(information.names) + 0.9 + 0.12 * len(title)
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    # An estimate from samples can fall slightly below zero.
    _draw_cells(axis, information.nats[:, order].clip(min=0))
    axis.set_yticks(np.arange(len(information.names)) + 0.5, information.names)
    labels = [f"{format_latent(latent, [])}\n{kl[latent]:.2f}" for latent in order]
    axis.set_xticks(np.arange(len(order)) + 0.5, labels)
    selection = (
        "" if len(order) == len(kl) else f"; the {len(order)} of largest KL out of {len(kl)}"
    )
    axis.set_xlabel(f"latent and its KL (nats){selection}", fontsize=9)
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=7, color=QUIET_COLOUR)
    return figure


def _draw_cells(axis: Axes, nats: np.ndarray) -> None:
    darkest = max(nats.max(), MIN_INFORMATION)  # negligible information stays pale
    axis.pcolormesh(nats, cmap="Blues", vmin=0, vmax=darkest, edgecolors="white", linewidth=0.5)
    axis.invert_yaxis()
    for (row, column), value in np.ndenumerate(nats):
        colour = "white" if value > 0.6 * darkest else "black" if value >= 0.005 else FAINT_COLOUR
        x, y = column + 0.5, row + 0.5
        axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
