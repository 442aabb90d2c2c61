"""Precision, recall, density and coverage of generated features: quality and variety apart."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from controlvae.metrics._validation import check_at_least
from controlvae.metrics.image.fid import to_float64

_MAX_DISTANCES = {"cuda": 1 << 28, "cpu": 1 << 25}  # at a time: 1 GiB and 128 MiB in float32


@dataclass(frozen=True)
class PRDC:
    """Four scores; 1 is as good as the real features themselves, and density may exceed it."""

    precision: float  # generated features within the real ones: quality
    recall: float  # real features within the generated ones: variety
    density: float  # real neighbourhoods around a generated feature, relative to neighbours
    coverage: float  # real features with a generated one in their neighbourhood
    estimator: str


@torch.no_grad()
def prdc(features_real: Any, features_generated: Any, *, neighbours: int = 5) -> PRDC:
    r"""Compute precision, recall, density and coverage.

    .. math::
        \mathrm{precision} = \frac1M \sum_m \mathbf 1[\exists n: y_m \in B(x_n)], \qquad
        \mathrm{density} = \frac1{k M} \sum_{m, n} \mathbf 1[y_m \in B(x_n)], \qquad
        \mathrm{coverage} = \frac1N \sum_n \mathbf 1[\exists m: y_m \in B(x_n)]

    :math:`B(x_n)` is the ball around a real feature up to its k-th nearest real neighbour; recall
    is precision with real and generated exchanged (Kynkäänniemi et al., *Improved precision and
    recall metric for assessing generative models*, 2019, with k = 3; Naeem et al., *Reliable
    fidelity and diversity metrics for generative models*, 2020, with k = 5). FID mixes quality and
    variety. These tell which of the two is lost. Density and coverage are less sensitive to
    outliers.

    All four depend on k and on the number of features, so compare them at equal counts; the papers
    use 10,000 to 50,000. Distances are computed in blocks of 128 MiB, or 1 GiB on a GPU, so the
    memory does not grow with the product of the counts. Features of float64 are compared in
    float64, others in float32.

    Args:
        features_real: Features of real images, (n, features), on any device.
        features_generated: Features of generated images, (m, features).
        neighbours: k.

    Returns:
        The four scores and a description of the estimate.

    >>> x = torch.arange(8.0)[:, None]
    >>> scores = prdc(x, x[:4] + 0.25, neighbours=1)
    >>> scores.precision, scores.recall, scores.density, scores.coverage
    (1.0, 0.625, 2.0, 0.625)
    """
    check_at_least(1, neighbours=neighbours)
    real = _table("features_real", features_real, neighbours)
    generated = _table("features_generated", features_generated, neighbours)
    if real.shape[1] != generated.shape[1]:
        raise ValueError(
            "both sets must have equally many features, got "
            f"{real.shape[1]} and {generated.shape[1]}"
        )
    dtype = torch.promote_types(real.dtype, generated.dtype)
    real, generated = real.to(dtype), generated.to(real.device, dtype)
    # Distances between centred features lose fewer digits.
    centre = real.mean(0)
    real, generated = real - centre, generated - centre
    radius = _squared_radii(real, neighbours)
    other_radius = _squared_radii(generated, neighbours)
    balls = torch.zeros(len(generated), dtype=torch.int64, device=real.device)
    recalled = covered = 0
    for rows in _chunks(real, len(generated)):
        distance = _squared_distances(real[rows], generated)
        inside = distance < radius[rows, None]
        balls += inside.sum(0)
        covered += int(inside.any(1).sum())
        recalled += int((distance < other_radius).any(1).sum())
    return PRDC(
        precision=(balls > 0).double().mean().item(),
        recall=recalled / len(real),
        density=balls.double().mean().item() / neighbours,
        coverage=covered / len(real),
        estimator=f"{neighbours} neighbours, {real.shape[1]:,} features, {len(real):,} real and "
        f"{len(generated):,} generated",
    )


def _table(name: str, values: Any, neighbours: int) -> Tensor:
    table = values.detach() if isinstance(values, Tensor) else to_float64(values)
    if table.ndim != 2 or table.shape[1] < 1 or len(table) <= neighbours:
        raise ValueError(
            f"{name} must be (examples, features) with more than {neighbours} examples (the "
            f"neighbours), got shape {tuple(table.shape)}"
        )
    table = table if table.dtype == torch.float64 else table.float()
    if not table.isfinite().all():
        raise ValueError(
            f"{name} must be finite, got {int((~table.isfinite()).sum())} values that are not"
        )
    return table


def _chunks(table: Tensor, others: int) -> list[slice]:
    """Return slices of rows whose distances to all others fit in bounded memory."""
    limit = _MAX_DISTANCES["cuda" if table.is_cuda else "cpu"]
    rows = max(1, limit // others)
    return [slice(start, start + rows) for start in range(0, len(table), rows)]


def _squared_radii(table: Tensor, neighbours: int) -> Tensor:
    """Return the squared distance of each row to its k-th nearest other row, (rows,)."""
    radii = []
    for rows in _chunks(table, len(table)):
        distance = _squared_distances(table[rows], table)
        own = torch.arange(len(distance), device=table.device)
        distance[own, own + rows.start] = -1  # the nearest of all, whatever the rounding
        nearest = distance.topk(neighbours + 1, dim=1, largest=False).values
        radii.append(nearest[:, -1])
    return torch.cat(radii)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return |a - b|² of all pairs, (rows of a, rows of b), by one matrix product."""
    # TF32 would round features to 10 bits. The setting is restored, since it is global.
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        product = torch.addmm(b.square().sum(1), a, b.T, alpha=-2)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return product.add_(a.square().sum(1, keepdim=True)).clamp_(min=0)
