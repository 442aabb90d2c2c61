"""Robust mutual information gap (RMIG): MIG from posterior masses in fixed bins."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from controlvae.metrics._validation import check_at_least, factor_labels, warn_if_few_examples
from controlvae.metrics.disentanglement._information import as_gaussians, factor_information
from controlvae.metrics.disentanglement.mig import MIG, REMARK, information_gap

_LOW, _HIGH = -4.0, 4.0  # range of z that is divided into bins
# Log-variance of a posterior as wide as all bins together.
_WIDEST_LOG_VARIANCE = 2 * math.log(_HIGH - _LOW)


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
    r"""Compute RMIG, as Do & Tran do.

    .. math:: \frac1K \sum_k \frac{I(z_{(1)}; y_k) - I(z_{(2)}; y_k)}{H(y_k)}

    with z in equal bins from -4 to 4, and :math:`Q(b \mid x)` the posterior density at the centre
    of bin b, scaled to sum to 1 (Do & Tran, *Theory and Evaluation Metrics for Learning
    Disentangled Representations*, 2020). A posterior whose density is below 1e-5 at every centre,
    because it is too narrow or outside the bins, is assigned to the bin of its mean. Unlike in
    their code this does not apply to one wider than all bins, which needs σ > 40,000.

    Nothing is sampled, so equal posteriors give equal results. For dSprites use all images and all
    five factors.

    Args:
        means: Posterior means, (examples, latents). Computed in float64 for float64 means, else in
            float32.
        log_variances: Logarithms of the posterior variances (not of the standard deviations), same
            shape.
        factors: Integer classes, (examples, factors).
        bins: Bins per latent.
        factor_names: Names of the factors in the result.
        device: Device to compute on; default that of `means`.

    Returns:
        The gap of each factor and their mean.

    >>> factors = torch.arange(2).repeat(200)[:, None]
    >>> means = torch.cat([4.0 * factors - 2, torch.zeros(400, 1)], dim=1)
    >>> round(rmig(means, torch.zeros(400, 2), factors, bins=2).score, 6)
    0.995646
    """
    check_at_least(2, bins=bins)
    mean, log_variance = as_gaussians(means, log_variances, device)
    labels = factor_labels(factors, len(mean), factor_names)
    warn_if_few_examples(labels, stacklevel=4)
    counts = [int(column.max()) + 1 for column in labels]
    # One row for each value of each factor, factor by factor.
    numbered = (torch.from_numpy(column) + sum(counts[:k]) for k, column in enumerate(labels))
    rows = torch.stack(list(numbered), dim=1)
    joint = _joint_masses(mean, log_variance, rows.to(mean.device), sum(counts), bins).cpu()
    measured = [factor_information(part.numpy()) for part in joint.split(counts)]
    estimator = f"RMIG with {bins} bins on [-4, 4] (Do & Tran 2020), {len(mean):,} examples"
    if (outside := (mean.abs() > _HIGH).double().mean().item()) > 0.01:
        estimator += (
            f"{REMARK}{outside:.0%} of the means outside the bins and counted at their edge"
        )
    information, entropies = zip(*measured, strict=True)
    return information_gap(information, entropies, factor_names, estimator)


def _joint_masses(
    mean: Tensor, log_variance: Tensor, rows: Tensor, count: int, bins: int
) -> Tensor:
    """Return Σ_n Q(b | x_n) over the examples of each factor value.

    The result is float64 (values of all factors, latents, bins).
    """
    latents = mean.shape[1]
    chunk = max(1, (2**24 if mean.is_cuda else 2**20) // (latents * bins))
    joint = torch.zeros(count, latents * bins, dtype=torch.float64, device=mean.device)
    parts = (tensor.split(chunk) for tensor in (mean, log_variance, rows))
    for m, v, r in zip(*parts, strict=True):
        members = torch.zeros(len(m), count, dtype=torch.float64, device=m.device)
        members.scatter_(1, r, 1.0)
        # float64, because the sum is over all examples, and because no global tf32 or bf16 setting
        # makes a float64 product less exact.
        joint.addmm_(members.T, bin_masses(m, v, bins).flatten(1).double())
    return joint.view(count, latents, bins)


def bin_masses(mean: Tensor, log_variance: Tensor, bins: int) -> Tensor:
    """Return the mass Q(b | x) of each posterior in each bin, (examples, latents, bins).

    Args:
        mean: Posterior means, (examples, latents).
        log_variance: Logarithms of the posterior variances, same shape.
        bins: Bins per latent.
    """
    width = (_HIGH - _LOW) / bins
    centres = _LOW + width * (torch.arange(bins, dtype=mean.dtype, device=mean.device) + 0.5)
    log_variance = log_variance.clamp(min=math.log(1e-8))
    scale = (log_variance / -2).exp() * math.sqrt(0.5)  # the exponent is -(scale (c - μ))²
    nearest = centres[((mean - _LOW) / width).floor().clamp(0, bins - 1).long()]
    # A posterior wider than all bins has a low density everywhere: it is flat, not outside.
    log_constant = log_variance.clamp(max=_WIDEST_LOG_VARIANCE) + math.log(2 * math.pi)
    highest = -(((nearest - mean) * scale) ** 2) - 0.5 * log_constant
    is_outside = highest < math.log(1e-5)
    # Moved to the centre of its bin and made narrow, such a posterior has mass 1 in that bin.
    mean = torch.where(is_outside, nearest, mean)
    scale = torch.where(is_outside, 100 / width, scale)
    t = torch.addcmul(-(mean * scale)[:, :, None], scale[:, :, None], centres)
    # The width of a bin and 1/(σ√2π) cancel in the softmax.
    return torch.addcmul(t.new_zeros(()), t, t, value=-1).softmax(2)
