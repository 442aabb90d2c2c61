"""What each latent knows: mutual information with every factor, as names for latents and as a heat map."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from controlvae.lab.runs.folder import entry

# Nats. Below this about every factor, a latent gets no name: it would promise more than it holds.
TELLING = 0.1
SHOWN = 20  # latents in a picture unless someone asks for more: of hundreds most do nothing to see
# RMIG comes first: it takes all factors and all examples, where sampling leaves the shape out.
_ESTIMATES = ("rmig", "mig_histogram", "mig_sampled")


@dataclass(frozen=True)
class Information:
    """What latents tell about factors."""

    nats: np.ndarray  # (factors, latents)
    names: list[str]  # of the factors
    entropies: np.ndarray | None  # of the factors, nats; older measurements lack them
    estimator: str


def information(metrics: Mapping[str, Any]) -> Information | None:
    """By the first estimate that `metrics.json` has; None where it has none."""
    for name in _ESTIMATES:
        found = metrics.get(name, {})
        if "mutual_information" in found and isinstance(found["per_factor"], dict):
            nats = np.array(
                found["mutual_information"], dtype=np.float64
            )  # what is not a number is NaN
            entropies = (
                np.array(found["entropies"], dtype=np.float64) if "entropies" in found else None
            )
            return Information(nats, list(found["per_factor"]), entropies, found["estimator"])
    return None


def scored_kl(metrics: Mapping[str, Any]) -> list[float] | None:
    """The KL of each latent over the examples that scores are of; None where it was not measured."""
    kl = entry(metrics, "ground_truth.kl_per_latent")
    return (
        None if kl is None or None in kl else list(kl)
    )  # a number that JSON does not know is None there


def latent_factors(metrics: Mapping[str, Any] | None) -> list[str | None]:
    """The factor each latent tells most about; None where it tells next to nothing; empty where none are known.

    By the share of the factor's entropy, as in MIG: by nats a factor of many values would win over one of few.
    """
    found = information(metrics) if metrics is not None else None
    if metrics is None or found is None:
        return []
    shares = found.nats if found.entropies is None else found.nats / found.entropies[:, None]
    shares = np.where(found.nats >= TELLING, shares, 0.0)
    return [
        found.names[best] if shares[best, z] > 0 else None
        for z, best in enumerate(shares.argmax(0))
    ]


def naming(metrics: Mapping[str, Any]) -> str:
    """By what `latent_factors` names a latent, in words."""
    found = information(metrics)
    measure = (
        "in nats"
        if found is None or found.entropies is None
        else "as a share of the factor's entropy"
    )
    return f"the factor it tells most about, {measure}; none where that is below {TELLING:g} nats"


def latent_name(latent: int, factors: Sequence[str | None]) -> str:
    """`x, z₉`, or `z₉` where the factor is not known. Latents count from 1, as everywhere a person reads them."""
    symbol = "z" + str(latent + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    factor = factors[latent] if factors else None
    return f"{factor}, {symbol}" if factor else symbol


def information_figure(metrics: Mapping[str, Any]) -> Figure | None:
    """A heat map of factors against the latents of largest KL, in its order; None where there is nothing to draw.

    Every cell has its number, so there is no colour bar; and as a mesh, not an image, it stays sharp at any size.
    """
    found = information(metrics)
    if found is None:
        return None
    names = found.names
    kl = np.array(
        scored_kl(metrics) or metrics["kl_per_latent"]
    )  # older measurements have that of the bound alone
    order = np.argsort(-kl)[:SHOWN]
    shown = found.nats[:, order].clip(min=0)  # sampling can fall a little below 0
    width = max(0.46 * len(order) + 0.08 * max(len(name) for name in names) + 0.2, 3.0)  # inches
    estimated = f"Estimated as for {found.estimator}"
    title = [
        "Mutual information of factors and latents (nats).",
        *textwrap.wrap(estimated, int(width / 0.06)),
    ]
    figure = Figure(
        figsize=(width, 0.32 * len(names) + 0.9 + 0.12 * len(title)), layout="constrained"
    )
    axis = figure.subplots()
    darkest = max(shown.max(), TELLING)  # next to nothing stays pale
    axis.pcolormesh(shown, cmap="Blues", vmin=0, vmax=darkest, edgecolors="white", linewidth=0.5)
    axis.invert_yaxis()
    for (row, column), value in np.ndenumerate(shown):
        colour = "white" if value > 0.6 * darkest else "black" if value >= 0.005 else "#9aa5ab"
        axis.text(
            column + 0.5,
            row + 0.5,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=8,
            color=colour,
        )
    axis.set_yticks(np.arange(len(names)) + 0.5, names)
    axis.set_xticks(
        np.arange(len(order)) + 0.5,
        [f"{latent_name(latent, [])}\n{kl[latent]:.2f}" for latent in order],
    )
    few = "" if len(order) == len(kl) else f"; the {len(order)} of largest KL out of {len(kl)}"
    axis.set_xlabel(f"latent, and its KL (nats){few}", fontsize=9)
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=7, color="#55656f")
    return figure
