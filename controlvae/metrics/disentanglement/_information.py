"""Mutual information between binned codes and factors, shared by MIG, RMIG and modularity."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from controlvae.metrics._validation import as_code_tensor


def histogram_information(
    values: np.ndarray, labels: Sequence[np.ndarray], bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mutual information of binned codes and factors.

    Args:
        values: Codes, (examples, latents).
        labels: Labels of each factor, (examples,).
        bins: Bins per latent.

    Returns:
        I(z_j; y_k), (factors, latents), and H(y_k), (factors,), in nats.
    """
    bin_numbers = [histogram_bins(column, bins) for column in values.T]
    binned = np.stack(bin_numbers, axis=1) - 1  # (examples, latents)
    measured = [factor_information(_joint_counts(binned, column, bins)) for column in labels]
    return np.stack([row for row, _ in measured]), np.array([entropy for _, entropy in measured])


def histogram_bins(column: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of each value, counted from 1. The largest value is in the last bin."""
    column = np.asarray(column, dtype=np.float64)
    # A column that is constant up to rounding is too narrow for bins.
    if np.ptp(column) <= 4 * bins * np.spacing(np.abs(column).max()):
        return np.ones(len(column), dtype=np.int64)
    return np.digitize(column, np.histogram(column, bins)[1][:-1])


def _joint_counts(binned: np.ndarray, labels: np.ndarray, bins: int) -> np.ndarray:
    """Count how often each factor value occurs with each bin of each latent.

    Returns an array (values, latents, bins).
    """
    values = int(labels.max()) + 1
    counts = [np.bincount(labels * bins + column, minlength=values * bins) for column in binned.T]
    return np.stack(counts).reshape(-1, values, bins).swapaxes(0, 1)


def factor_information(joint: np.ndarray) -> tuple[np.ndarray, float]:
    """Return I(z_j; y) of each latent and H(y), in nats.

    `joint` holds counts or masses, (values, latents, bins).
    """
    p = joint / joint.sum((0, 2), keepdims=True)
    values = p[:, 0].sum(1)  # (values,), the same for every latent
    rows = [entropy(values) + entropy(p[:, j].sum(0)) - entropy(p[:, j]) for j in range(p.shape[1])]
    return np.array(rows), entropy(values)


def entropy(p: np.ndarray) -> float:
    """Return -Σ p ln p over all entries, in nats."""
    return float(-(p * np.log(np.where(p > 0, p, 1.0))).sum())


def as_gaussians(
    means: Any, log_variances: Any, device: torch.device | str | None
) -> tuple[Tensor, Tensor]:
    """Check posteriors and convert them to two tensors of one dtype on one device.

    Args:
        means: Posterior means, (examples, latents).
        log_variances: Logarithms of the posterior variances, same shape.
        device: Device of the result; default that of `means`.
    """
    mean = as_code_tensor("means", means, device)
    log_variance = as_code_tensor("log_variances", log_variances).to(mean)
    if log_variance.shape != mean.shape:
        raise ValueError(
            f"log_variances must have the shape of means, {tuple(mean.shape)}, got "
            f"{tuple(log_variance.shape)}"
        )
    return mean, log_variance
