"""Mutual information gap (MIG), by two estimators: samples of the posteriors, or a histogram.

MIG is the information that the best latent has about a factor minus that of the second best, as a
share of the factor's entropy. Both estimators follow Chen et al., *Isolating Sources of
Disentanglement in VAEs*, 2018, but their values differ. The result therefore names its estimator.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.metrics._validation import (
    by_factor_name,
    check_at_least,
    check_codes,
    factor_label,
    factor_labels,
    to_numpy,
    warn_if_few_examples,
)
from controlvae.metrics.disentanglement._information import (
    as_gaussians,
    entropy,
    histogram_information,
)
from controlvae.metrics.disentanglement._mig_sampling import draw_codes, mixture_entropy

#: Separates the name of an estimator from a remark on these codes only.
REMARK = "; "

_MAX_LOG_VARIANCE = 60
_MIN_EVENNESS = 0.95  # entropy of a factor as a share of the largest possible


@dataclass(frozen=True)
class MIG:
    """Gap of each factor, their mean, and the information behind them."""

    score: float  # mean over the factors
    per_factor: dict[str, float] | list[float]  # by name if names were given
    mutual_information: list[list[float]]  # nats, (factors, latents); samples may give less than 0
    entropies: list[float]  # of the factors, nats: the largest possible information
    estimator: str  # name, number of examples and settings; a remark may follow REMARK


def mig(
    codes: Any, factors: Any, *, bins: int = 20, factor_names: Sequence[str] | None = None
) -> MIG:
    r"""Compute the MIG of any representation. Alias of `mig_histogram`.

    .. math:: \frac1K \sum_k \frac{I(\hat z_{(1)}; y_k) - I(\hat z_{(2)}; y_k)}{H(y_k)}

    For the MIG of a VAE as Chen et al. (2018) and the ControlVAE paper report it, use
    `mig_sampled`.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors).
        bins: Bins per latent.
        factor_names: Names of the factors in the result.

    Returns:
        The gap of each factor and their mean.

    >>> mig([[0, 0], [0, 0], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0], [1, 1]]).score
    0.5
    """
    return mig_histogram(codes, factors, bins=bins, factor_names=factor_names)


def mig_histogram(
    codes: Any, factors: Any, *, bins: int = 20, factor_names: Sequence[str] | None = None
) -> MIG:
    r"""Compute MIG from a histogram of codes, as disentanglement_lib does.

    .. math:: \frac1K \sum_k \frac{I(\hat z_{(1)}; y_k) - I(\hat z_{(2)}; y_k)}{H(y_k)}

    with :math:`\hat z_j` the bin of code j among equal bins from its smallest to its largest value.
    Locatello et al., *Challenging Common Assumptions in the Unsupervised Learning of Disentangled
    Representations*, 2019, use the posterior means of 10,000 examples and all factors.

    Args:
        codes: Codes, (examples, latents).
        factors: Integer classes, (examples, factors).
        bins: Bins per latent.
        factor_names: Names of the factors in the result.

    Returns:
        The gap of each factor and their mean.

    >>> mig_histogram([[0, 0], [0, 0], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0], [1, 1]]).score
    0.5
    """
    check_at_least(2, bins=bins)
    values = check_codes("codes", to_numpy(codes))
    labels = factor_labels(factors, len(values), factor_names)
    warn_if_few_examples(labels)
    information, entropies = histogram_information(values, labels, bins)
    estimator = (
        f"MIG from a histogram of {bins} bins (disentanglement_lib), {len(values):,} examples"
    )
    return information_gap(list(information), entropies, factor_names, estimator)


@torch.no_grad()
def mig_sampled(
    means: Any,
    log_variances: Any,
    factors: Any,
    *,
    draws: int = 10_000,
    seed: int = 0,
    factor_names: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    progress: Callable[[float], None] | None = None,
) -> MIG:
    r"""Compute MIG from samples of the posterior, as Chen et al. and the ControlVAE paper do.

    .. math::
        \frac1K \sum_k \frac{I(z_{(1)}; y_k) - I(z_{(2)}; y_k)}{\ln V_k}, \qquad
        I(z_j; y_k) = H(z_j) - \frac1{V_k} \sum_v H(z_j \mid y_k = v)

    An entropy is the mean of :math:`-\ln q(z_j)` over draws without replacement, where
    :math:`q(z_j) = \frac1N \sum_n \mathcal N(z_j; \mu_{nj}, \sigma_{nj}^2)` mixes the posteriors of
    all N examples, or of those with :math:`y_k = v`. Negative estimates of the information count
    as 0.

    Every value of a factor has equal weight, as on the grid of dSprites. Pass the factors to
    average over: the paper uses scale, orientation, x and y, and omits shape. The cost is
    (factors + 1) · latents · draws · N densities, 3.7e11 for all of dSprites: seconds on a GPU. A
    CPU skips densities that add nothing and merges posteriors that nearly coincide. That takes
    half a minute and changes an entropy by about 1e-6 nats, at most by 1e-4.

    Args:
        means: Posterior means, (examples, latents). Computed in float64 for float64 means, else in
            float32.
        log_variances: Logarithms of the posterior variances (not of the standard deviations), same
            shape.
        factors: Integer classes, (examples, factors).
        draws: Draws per entropy; at most the number of examples.
        seed: Seed of the draws, which are the same on every device.
        factor_names: Names of the factors in the result.
        device: Device to compute on; default that of `means`.
        progress: Called with the share that is done, up to 1.

    Returns:
        The gap of each factor and their mean.

    >>> factors = torch.arange(2).repeat(2000)[:, None]
    >>> means = torch.cat([6.0 * factors - 3, torch.zeros(4000, 1)], dim=1)
    >>> round(mig_sampled(means, torch.zeros(4000, 2), factors, draws=2000).score, 1)
    1.0
    """
    check_at_least(1, draws=draws)
    mean, log_variance = as_gaussians(means, log_variances, device)
    labels = factor_labels(factors, len(mean), factor_names)
    _warn_if_unbalanced(labels, factor_names)
    warn_if_few_examples(labels, stacklevel=4)
    _check_range(mean, log_variance)
    # The generator is on the host, so that the draws do not depend on the device.
    generator = torch.Generator().manual_seed(seed)
    z, encoders = draw_codes(mean, log_variance, generator)
    by_value = (members for column in labels for members in _rows_by_value(column))
    groups = [torch.arange(len(mean)), *by_value]
    work = [len(members) * min(draws, len(members)) for members in groups]
    entropies = []
    for number, members in enumerate(groups, 1):
        chosen = members[torch.randperm(len(members), generator=generator)[:draws]]
        entropies.append(mixture_entropy(z, chosen, encoders, members))
        if progress is not None:
            progress(sum(work[:number]) / sum(work))
    counts = [int(column.max()) + 1 for column in labels]
    conditional = np.split(np.stack(entropies[1:]), np.cumsum(counts)[:-1])  # (values, latents)
    information = [entropies[0] - rows.mean(0) for rows in conditional]
    settings = f"{len(mean):,} examples, at most {min(draws, len(mean)):,} draws per entropy"
    estimator = f"MIG by sampling (Chen et al. 2018), {settings}"
    return information_gap(information, np.log(counts), factor_names, estimator)


def _warn_if_unbalanced(labels: Sequence[np.ndarray], names: Sequence[str] | None) -> None:
    """Warn if the values of a factor are not equally frequent, which this estimator assumes."""
    for number, column in enumerate(labels):
        share = np.bincount(column) / len(column)
        evenness = entropy(share) / math.log(len(share))
        if evenness < _MIN_EVENNESS:
            warnings.warn(
                f"{factor_label(number, names)} has values of unequal frequency (its entropy is "
                f"{evenness:.2f} of the largest possible), but mig_sampled gives them equal "
                "weight; rmig and mig_histogram weight them by frequency",
                stacklevel=4,
            )


def _check_range(mean: Tensor, log_variance: Tensor) -> None:
    """Raise ValueError if densities leave float32's range or rounding hides a posterior."""
    extreme = log_variance.abs().max().item()
    if extreme > _MAX_LOG_VARIANCE:
        raise ValueError(f"log_variances must be in [-60, 60], got {extreme:.3g}")
    distance = (mean.abs() * (log_variance / -2).exp()).max().item()  # in standard deviations
    if distance * torch.finfo(mean.dtype).eps > 0.1:
        dtype = str(mean.dtype).removeprefix("torch.")
        raise ValueError(
            f"a mean is {distance:.1g} standard deviations from 0, which {dtype} cannot resolve"
        )


def _rows_by_value(labels: np.ndarray) -> tuple[Tensor, ...]:
    """Return the examples of each value, in order."""
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    return order.split(np.bincount(labels).tolist())


def information_gap(
    information: Sequence[np.ndarray],
    largest: Sequence[float] | np.ndarray,
    names: Sequence[str] | None,
    estimator: str,
) -> MIG:
    """Compute the gaps between the two most informative latents of each factor.

    Args:
        information: Information of each factor with every latent, (latents,), in nats.
        largest: Largest possible information of each factor.
        names: Names of the factors.
        estimator: Description of the estimator.
    """
    table = np.stack(information)  # (factors, latents)
    ordered = np.sort(table, axis=1)[:, ::-1].clip(min=0)
    gaps = ((ordered[:, 0] - ordered[:, 1]) / np.asarray(largest)).tolist()
    return MIG(
        score=float(np.mean(gaps)),
        per_factor=by_factor_name(gaps, names),
        mutual_information=table.tolist(),
        entropies=np.asarray(largest).tolist(),
        estimator=estimator,
    )
