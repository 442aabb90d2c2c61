"""The robust mutual information gap: MIG from each posterior's mass in fixed bins, without sampling."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.metrics._validation import at_least, check_enough, classes
from controlvae.metrics.disentanglement.mig import MIG, REMARK, factor_information, gap, gaussians

_LOW, _HIGH = -4.0, 4.0  # the range of z that is divided into bins
_BROAD = 2 * math.log(
    _HIGH - _LOW
)  # the logarithm of the variance of a posterior as broad as all bins


@torch.no_grad()
def rmig(
    means: Any,
    log_variances: Any,
    factors: Any,
    *,
    bins: int = 100,
    factor_names: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> MIG:
    r"""RMIG, as Do & Tran compute it (*Theory and Evaluation Metrics for Learning Disentangled Representations*, 2020).

    .. math:: \frac1K \sum_k \frac{I(z_{(1)}; y_k) - I(z_{(2)}; y_k)}{H(y_k)}

    with z in equal bins from -4 to 4, and :math:`Q(b \mid x)` the posterior's density at the centre of bin b, made to
    add up to 1. A posterior whose density stays below 1e-5 at every centre (too narrow for the bins, or outside them)
    is put into the bin of its mean whole; one broader than all bins is not, as it is in their code, where σ is beyond
    40,000. Nothing is drawn, so the same posteriors give the same number: for dSprites
    take all images and all five factors.

    Args:
        means: posterior means, (examples, latents). float64 is computed in float64, all else in float32.
        log_variances: logarithms of the posterior variances (not of the standard deviations), of the same shape.
        factors: integer classes, (examples, factors).
        bins: bins per latent.
        factor_names: what to call the factors in the result.
        device: where to compute; by default where `means` are.
    """
    at_least(2, bins=bins)
    mean, log_variance = gaussians(means, log_variances, device)
    columns = classes(factors, len(mean), factor_names)
    check_enough(columns, stacklevel=4)
    counts = [int(labels.max()) + 1 for labels in columns]
    # A row for each value of each factor, one factor after the other.
    rows = torch.stack(
        [torch.from_numpy(labels) + sum(counts[:k]) for k, labels in enumerate(columns)], dim=1
    )
    joint = _joint_masses(mean, log_variance, rows.to(mean.device), sum(counts), bins).cpu()
    measured = [factor_information(part.numpy()) for part in joint.split(counts)]
    estimator = f"RMIG with {bins} bins on [-4, 4] (Do & Tran 2020), {len(mean):,} examples"
    if (outside := (mean.abs() > _HIGH).double().mean().item()) > 0.01:
        estimator += (
            f"{REMARK}{outside:.0%} of the means outside the bins and counted at their edge"
        )
    return gap(
        [row for row, _ in measured], [entropy for _, entropy in measured], factor_names, estimator
    )


def _joint_masses(
    mean: Tensor, log_variance: Tensor, rows: Tensor, count: int, bins: int
) -> Tensor:
    """Σ_n Q(b | x_n) over the examples of each value: float64 (values of all factors, latents, bins)."""
    latents = mean.shape[1]
    chunk = max(1, (2**24 if mean.is_cuda else 2**20) // (latents * bins))
    joint = torch.zeros(count, latents * bins, dtype=torch.float64, device=mean.device)
    for m, v, r in zip(
        mean.split(chunk), log_variance.split(chunk), rows.split(chunk), strict=True
    ):
        members = torch.zeros(len(m), count, dtype=torch.float64, device=m.device).scatter_(
            1, r, 1.0
        )
        # float64: sums over all examples, and a product that no global tf32 or bf16 setting makes coarser.
        joint.addmm_(members.T, bin_masses(m, v, bins).flatten(1).double())
    return joint.view(count, latents, bins)


def bin_masses(mean: Tensor, log_variance: Tensor, bins: int) -> Tensor:
    """Q(b | x): each posterior's share in each bin, (examples, latents, bins)."""
    width = (_HIGH - _LOW) / bins
    centres = _LOW + width * (torch.arange(bins, dtype=mean.dtype, device=mean.device) + 0.5)
    log_variance = log_variance.clamp(min=math.log(1e-8))
    scale = (log_variance / -2).exp() * math.sqrt(0.5)  # the exponent is -(scale (c - μ))²
    nearest = centres[((mean - _LOW) / width).floor().clamp(0, bins - 1).long()]
    # One broader than all bins is low everywhere, which makes it flat and not lost.
    highest = -(((nearest - mean) * scale) ** 2) - 0.5 * (
        log_variance.clamp(max=_BROAD) + math.log(2 * math.pi)
    )
    lost = highest < math.log(1e-5)
    # Moved to its bin's centre and made narrow against the width, such a posterior gives exactly a one there.
    mean, scale = torch.where(lost, nearest, mean), torch.where(lost, 100 / width, scale)
    t = torch.addcmul(-(mean * scale)[:, :, None], scale[:, :, None], centres)
    return torch.addcmul(t.new_zeros(()), t, t, value=-1).softmax(2)  # the width and 1/σ√2π cancel
