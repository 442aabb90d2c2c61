"""Cost of a target in ELBO: the measured difference next to the one that the formula predicts."""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from controlvae.diagnostics.collapse import count_used_latents
from controlvae.lab.evaluation.statistics import sample_sd
from controlvae.lab.reports.elbo_bound import BaselinePair
from controlvae.lab.reports.formatting import format_number
from controlvae.lab.reports.verdict import Outcome, choose_baseline, compared_values
from controlvae.lab.reports.views import TableView
from controlvae.tuning.elbo_cost import elbo_cost

COST_HEADS = (
    "used latents of the plain VAE",
    "elbo cost mean",
    "elbo cost sd",
    "predicted elbo cost mean",
)
_TABLE_HEADS = ["run", "KL above the plain VAE's", "used latents of the plain VAE"]
_TABLE_HEADS += ["cost in ELBO", "predicted cost"]
_TABLE_NOTE = (
    "Nats per example, against the plain VAE, of the same seed where there is one. Predicted: "
    "(n/2)(2d/n − 1 + exp(−2d/n)) for a KL that is d nats above that of the plain VAE with n used "
    "latents (KL of at least 0.01 nats). It has no free parameter and assumes trained models that "
    "use the same latents. A dash stands for a plain VAE that uses none."
)


def count_latents(kl_per_latent: Collection[float | None] | None) -> int | None:
    """Return the number of used latents, or None if it was not recorded."""
    return count_used_latents(kl_per_latent) if kl_per_latent else None


def cost_fields(pairs: Sequence[BaselinePair]) -> list[float | None]:
    """Return the values of `COST_HEADS` for the seeds of a setting; None where unknown."""
    costs = [-pair.elbo_gain for pair in pairs]
    latents = [pair.latents for pair in pairs if pair.latents is not None]
    return [
        fmean(latents) if latents else None,
        fmean(costs) if costs else None,
        sample_sd(costs) if len(costs) > 1 else None,
        _mean_prediction(pairs),
    ]


def describe_cost(pairs: Sequence[BaselinePair]) -> str:
    """Return the measured and the predicted cost of a setting as the end of a line, or ""."""
    if not pairs:
        return ""
    predicted = _mean_prediction(pairs)
    expected = "no prediction" if predicted is None else f"predicted {predicted:.2f}"
    return f"; costs {fmean(-pair.elbo_gain for pair in pairs):.2f} nats of ELBO, {expected}"


def _mean_prediction(pairs: Sequence[BaselinePair]) -> float | None:
    predicted = [pair.predicted_cost for pair in pairs if pair.predicted_cost is not None]
    return fmean(predicted) if predicted and len(predicted) == len(pairs) else None


def cost_table(outcomes: Sequence[Outcome]) -> TableView | None:
    """Build the table of costs in ELBO for a report.

    Args:
        outcomes: All runs of the report.

    Returns:
        A row for every run that has a plain VAE of the same task; None if there is no such run.
    """
    rows: list[list[str]] = []
    measured_on: dict[str, None] = {}
    for outcome in outcomes:
        baseline = choose_baseline(outcome, outcomes) if outcome.records else None
        if baseline is None or not baseline.is_plain:
            continue
        own, plain, basis = compared_values(outcome, baseline)
        if None in (own["elbo"], own["kl"], plain["elbo"], plain["kl"]):
            continue
        measured_on[basis] = None
        rows.append([outcome.name, *_cells(own, plain)])
    if not rows:
        return None
    notes = [_TABLE_NOTE, f"Measured {' or '.join(measured_on)}."]
    return TableView("Cost in ELBO", _TABLE_HEADS, rows, notes)


def _cells(own: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    d, latents = own["kl"] - plain["kl"], count_latents(plain["kl_per_latent"])
    predicted = elbo_cost(d, latents) if latents else None
    return [
        format_number(d),
        "–" if latents is None else str(latents),
        format_number(plain["elbo"] - own["elbo"]),
        format_number(predicted),
    ]
