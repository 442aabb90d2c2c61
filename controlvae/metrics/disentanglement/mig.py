"""The mutual information gap, by its two estimators: sampled from the posteriors, or from a histogram of their means.

How much more one latent tells about a factor of variation than the next best latent does, as a share of all there is
to tell. Both follow one definition (Chen et al., *Isolating Sources of Disentanglement in VAEs*, 2018), yet differ in
their numbers, so the record that comes out names its estimator.
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
    at_least,
    check_enough,
    classes,
    code_table,
    code_tensor,
    factor_word,
    host_array,
    named,
)
from controlvae.metrics.disentanglement._mig_cpu import add_cells

_FEW_PAIRS = 2**22  # of draws and encoders: a host adds so many up one by one
REMARK = "; "  # in the words of an estimator: before what is said of these codes alone


@dataclass(frozen=True)
class MIG:
    """A gap per factor, their mean, and how they were estimated."""

    score: float  # mean over the factors
    per_factor: dict[str, float] | list[float]  # by name where names were given
    mutual_information: list[
        list[float]
    ]  # nats, (factors, latents); a sampled one may fall a little below 0
    entropies: list[float]  # of the factors, nats: the most there is to tell
    estimator: (
        str  # which one, over how many examples, with which settings; what follows REMARK is one
    )


def mig(
    codes: Any, factors: Any, *, bins: int = 20, factor_names: Sequence[str] | None = None
) -> MIG:
    """MIG of any representation: an alias of `mig_histogram`.

    For a VAE's own MIG as Chen et al. and the ControlVAE paper report it, use `mig_sampled`.
    """
    return mig_histogram(codes, factors, bins=bins, factor_names=factor_names)


def mig_histogram(
    codes: Any, factors: Any, *, bins: int = 20, factor_names: Sequence[str] | None = None
) -> MIG:
    r"""MIG from a histogram of codes, as disentanglement_lib computes it.

    .. math:: \frac1K \sum_k \frac{I(\hat z_{(1)}; y_k) - I(\hat z_{(2)}; y_k)}{H(y_k)}

    with :math:`\hat z_j` the bin of code j among equal ones from its least to its largest value. Locatello et al.,
    *Challenging Common Assumptions in the Unsupervised Learning of Disentangled Representations*, 2019, take the
    posterior means of 10,000 examples and all factors.

    Args:
        codes: (examples, latents).
        factors: integer classes, (examples, factors).
        bins: bins per latent.
        factor_names: what to call the factors in the result.

    >>> mig_histogram([[0, 0], [0, 0], [1, 0], [1, 1]], [[0, 0], [0, 1], [1, 0], [1, 1]]).score
    0.5
    """
    at_least(2, bins=bins)
    values = code_table("codes", host_array(codes))
    columns = classes(factors, len(values), factor_names)
    check_enough(columns)
    information, entropies = histogram_information(values, columns, bins)
    estimator = (
        f"MIG from a histogram of {bins} bins (disentanglement_lib), {len(values):,} examples"
    )
    return gap(list(information), entropies, factor_names, estimator)


def histogram_information(
    values: np.ndarray, columns: Sequence[np.ndarray], bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """I(z_j; y_k) of binned codes, (factors, latents), and H(y_k), (factors,), in nats."""
    binned = (
        np.stack([histogram_bins(column, bins) for column in values.T], axis=1) - 1
    )  # (examples, latents)
    measured = [factor_information(_joint_counts(binned, labels, bins)) for labels in columns]
    return np.stack([row for row, _ in measured]), np.array([entropy for _, entropy in measured])


def histogram_bins(column: np.ndarray, bins: int) -> np.ndarray:
    """The bin of each value, from 1; the largest value belongs to the last bin."""
    column = np.asarray(column, dtype=np.float64)
    if np.ptp(column) <= 4 * bins * np.spacing(
        np.abs(column).max()
    ):  # as good as constant: too narrow for bins
        return np.ones(len(column), dtype=np.int64)
    return np.digitize(column, np.histogram(column, bins)[1][:-1])


def _joint_counts(binned: np.ndarray, labels: np.ndarray, bins: int) -> np.ndarray:
    """How often each value of a factor meets each bin of each latent: (values, latents, bins)."""
    values = int(labels.max()) + 1
    counts = [np.bincount(labels * bins + column, minlength=values * bins) for column in binned.T]
    return np.stack(counts).reshape(-1, values, bins).swapaxes(0, 1)


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
    r"""MIG from samples of the posterior, as Chen et al. (2018) and the ControlVAE paper compute it.

    .. math::
        \frac1K \sum_k \frac{I(z_{(1)}; y_k) - I(z_{(2)}; y_k)}{\ln V_k}, \qquad
        I(z_j; y_k) = H(z_j) - \frac1{V_k} \sum_v H(z_j \mid y_k = v)

    An entropy is the mean of :math:`-\ln q(z_j)` over draws without replacement, where
    :math:`q(z_j) = \frac1N \sum_n \mathcal N(z_j; \mu_{nj}, \sigma_{nj}^2)` mixes the posteriors of *all* N examples,
    or of all those with :math:`y_k = v`. Information below 0, which sampling can give, counts as 0.

    Every value of a factor counts the same, as on the grid of dSprites. Give the factors you want averaged: the paper
    takes scale, orientation, x and y, and leaves out shape. These are (factors + 1) · latents · draws · N densities,
    3.7e11 for all of dSprites: seconds on a GPU. A CPU passes over those that add nothing and takes posteriors that all
    but coincide for one, which moves an entropy by some 1e-6 nats and at worst by 1e-4, and half a minute.

    Args:
        means: posterior means, (examples, latents). float64 is computed in float64, all else in float32.
        log_variances: logarithms of the posterior variances (not of the standard deviations), of the same shape.
        factors: integer classes, (examples, factors).
        draws: draws per entropy, or as many as there are examples.
        seed: of the draws, which are the same on every device.
        factor_names: what to call the factors in the result.
        device: where to compute; by default where `means` are.
        progress: called with the share done, up to 1.
    """
    at_least(1, draws=draws)
    mean, log_variance = gaussians(means, log_variances, device)
    columns = classes(factors, len(mean), factor_names)
    _check_balance(columns, factor_names)
    check_enough(columns, stacklevel=4)
    _check_range(mean, log_variance)
    generator = torch.Generator().manual_seed(
        seed
    )  # the host's, so that the device does not change the draws
    z, encoders = _draw(mean, log_variance, generator)
    groups = [
        torch.arange(len(mean)),
        *(members for labels in columns for members in _by_value(labels)),
    ]
    work = [len(members) * min(draws, len(members)) for members in groups]
    entropies = []
    for number, members in enumerate(groups, 1):
        chosen = members[torch.randperm(len(members), generator=generator)[:draws]]
        entropies.append(_entropy(z, chosen, encoders, members))
        if progress is not None:
            progress(sum(work[:number]) / sum(work))
    counts = [int(labels.max()) + 1 for labels in columns]
    within = np.split(
        np.stack(entropies[1:]), np.cumsum(counts)[:-1]
    )  # per factor: (values, latents)
    settings = f"{len(mean):,} examples, at most {min(draws, len(mean)):,} draws per entropy"
    estimator = f"MIG by sampling (Chen et al. 2018), {settings}"
    return gap(
        [entropies[0] - rows.mean(0) for rows in within], np.log(counts), factor_names, estimator
    )


def _check_balance(columns: Sequence[np.ndarray], names: Sequence[str] | None) -> None:
    """Warns where the values of a factor are far from equally frequent, which this estimator takes them to be."""
    for number, labels in enumerate(columns):
        share = np.bincount(labels) / len(labels)
        evenness = entropy(share) / math.log(len(share))
        if evenness < 0.95:
            warnings.warn(
                f"{factor_word(number, names)} has values of unequal frequency (its entropy is {evenness:.2f} of the "
                "largest possible), but mig_sampled counts each the same; rmig and mig_histogram weigh them",
                stacklevel=4,
            )


def _check_range(mean: Tensor, log_variance: Tensor) -> None:
    """Refuses variances whose densities would leave float32's range, or whose width is lost in the rounding of z."""
    extreme = log_variance.abs().max().item()
    if extreme > 60:
        raise ValueError(f"log_variances must lie in [-60, 60], got one of size {extreme:.3g}")
    widths = (mean.abs() * (log_variance / -2).exp()).max().item()  # from 0, in standard deviations
    if widths * torch.finfo(mean.dtype).eps > 0.1:
        kind = str(mean.dtype).removeprefix("torch.")
        raise ValueError(
            f"a mean lies {widths:.1g} standard deviations from 0, which {kind} cannot resolve"
        )


def _draw(
    mean: Tensor, log_variance: Tensor, generator: torch.Generator
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One z from each posterior, and the posteriors as parabolas: (latents, examples) each.

    √(2π) N(z; μ, σ²) = 2^(peak - t²) with t = scale · z + shift. Multiplied out to a z² + b z + c it would be a matrix
    product, but would cancel terms of size (μ/σ)², where t only moves μ by a rounding. Powers of two because exp2 is
    2.7 times as fast as exp on a CPU, and the only one in hardware on a GPU.
    """
    noise = torch.randn(mean.shape, generator=generator).to(
        mean
    )  # float32 whatever the type, for the same draws
    z = mean + noise * (log_variance / 2).exp()
    scale = math.sqrt(0.5 / math.log(2)) * (log_variance / -2).exp()
    parts = (scale, -mean * scale, log_variance / (-2 * math.log(2)))
    return z.T.contiguous(), tuple(part.T.contiguous() for part in parts)


def _by_value(labels: np.ndarray) -> tuple[Tensor, ...]:
    """The examples of each value, in order."""
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    return order.split(np.bincount(labels).tolist())


def _entropy(
    z: Tensor, chosen: Tensor, encoders: tuple[Tensor, ...], members: Tensor
) -> np.ndarray:
    """Mean of -ln q over the chosen draws, q mixing the members' posteriors: float64 (latents,)."""
    points = z.index_select(1, chosen.to(z.device))
    parts = (part.index_select(1, members.to(z.device)) for part in encoders)
    mean_log = _log2_sum(points, *parts).double().mean(1) * math.log(2)
    return (math.log(len(members)) + 0.5 * math.log(2 * math.pi) - mean_log).cpu().numpy()


def _log2_sum(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """log2 Σ_n 2^(peak_n - (scale_n z + shift_n)²): z is (latents, draws), the others (latents, encoders)."""
    # No exponent exceeds the highest peak, so nothing overflows; each draw's own encoder is in the sum, and
    # the variances are bounded, so no sum underflows. That spares a pass in search of the maximum.
    highest = peak.amax(1, keepdim=True)
    many = z.device.type == "cpu" and z.shape[1] * scale.shape[1] > _FEW_PAIRS
    add = add_cells if many else _fused(z) or _add_tiles
    return add(z, scale, shift, peak - highest).log2() + highest


def _fused(z: Tensor) -> Callable[..., Tensor] | None:
    """The Triton kernel, where it can run."""
    if not (z.is_cuda and z.dtype == torch.float32):
        return None
    try:
        from controlvae.metrics.disentanglement._mig_kernel import add_densities
    except ImportError:
        return None
    return add_densities


def _add_tiles(z: Tensor, scale: Tensor, shift: Tensor, peak: Tensor) -> Tensor:
    """Σ_n 2^(peak_n - (scale_n z + shift_n)²), a tile of draws and encoders at a time: float64 (latents, draws)."""
    tile, width = (2**26, 8192) if z.is_cuda else (2**20, 1024)  # a CPU's tile stays in its cache
    blocks = math.ceil(scale.shape[1] / width)
    height = max(1, tile // (len(z) * math.ceil(scale.shape[1] / blocks)))
    total = torch.zeros_like(z, dtype=torch.float64)
    for a, b, c in zip(
        *(part[:, None].chunk(blocks, 2) for part in (scale, shift, peak)), strict=True
    ):
        for points, sums in zip(z.split(height, 1), total.split(height, 1), strict=True):
            t = torch.addcmul(b, points[:, :, None], a)  # (latents, height, width)
            sums.add_(torch.addcmul(c, t, t, value=-1, out=t).exp2_().sum(2))
    return total


def gaussians(
    means: Any, log_variances: Any, device: torch.device | str | None
) -> tuple[Tensor, Tensor]:
    """Posteriors as two tensors (examples, latents) of one type on one device, checked."""
    mean = code_tensor("means", means, device)
    log_variance = code_tensor("log_variances", log_variances).to(mean)
    if log_variance.shape != mean.shape:
        raise ValueError(
            f"log_variances must have the shape of means {tuple(mean.shape)}, got {tuple(log_variance.shape)}"
        )
    return mean, log_variance


def factor_information(joint: np.ndarray) -> tuple[np.ndarray, float]:
    """I(z_j; y) per latent and H(y), in nats, of counts or masses (values, latents, bins)."""
    p = joint / joint.sum((0, 2), keepdims=True)
    values = p[:, 0].sum(1)  # (values,), the same for every latent
    rows = [entropy(values) + entropy(p[:, j].sum(0)) - entropy(p[:, j]) for j in range(p.shape[1])]
    return np.array(rows), entropy(values)


def entropy(p: np.ndarray) -> float:
    """-Σ p ln p over all entries, nats."""
    return float(-(p * np.log(np.where(p > 0, p, 1.0))).sum())


def gap(
    measured: Sequence[np.ndarray],
    largest: Sequence[float] | np.ndarray,
    names: Sequence[str] | None,
    estimator: str,
) -> MIG:
    """The record, from each factor's information with every latent, (latents,), and the most there could be."""
    table = np.stack(measured)  # (factors, latents)
    ordered = np.sort(table, axis=1)[:, ::-1].clip(min=0)
    gaps = ((ordered[:, 0] - ordered[:, 1]) / np.asarray(largest)).tolist()
    return MIG(
        score=float(np.mean(gaps)),
        per_factor=named(gaps, names),
        mutual_information=table.tolist(),
        entropies=np.asarray(largest).tolist(),
        estimator=estimator,
    )
