"""Total correlation of codes under a Gaussian fit, without labels and without bias."""

from typing import Any

import numpy as np
import torch

from controlvae.metrics._validation import check_codes, to_numpy


def gaussian_total_correlation(codes: Any) -> float:
    r"""Estimate how dependent the latents of a code are, in nats.

    .. math:: \mathrm{KL}\Big(q(z) \,\Big\|\, \prod_j q(z_j)\Big) =
              \frac12 \Big(\sum_j \ln S_{jj} - \ln \det S\Big) - b

    for a Gaussian q(z) with covariance S. The plug-in value is too high by
    :math:`b = \frac12 \sum_{i=0}^{L-1} [\psi(\tfrac{n}{2}) - \psi(\tfrac{n - i}{2})]`, n = N - 1,
    which follows from the Wishart distribution and is removed: for Gaussian codes the estimate has
    no bias at any N > L. (disentanglement_lib has the plug-in value as Gaussian total correlation.)
    It sees correlation, and no dependence beyond it: uncorrelated latents that depend on each other
    count as 0. Latents that do not vary are left out. An unbiased estimate of 0 is negative at
    times.

    Pass samples of z, as the objectives of FactorVAE and β-TCVAE do, or posterior means.

    Args:
        codes: Codes, (examples, latents), with more examples than latents.

    Returns:
        The total correlation in nats.

    >>> z = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(0))
    >>> z[:, 1] = 0.8 * z[:, 0] + 0.6 * z[:, 1]
    >>> abs(gaussian_total_correlation(z) - 0.51) < 0.05
    True
    """
    values = check_codes("codes", to_numpy(codes)).astype(np.float64)
    values = values[:, values.std(0) > 0]
    freedom, latents = len(values) - 1, values.shape[1]
    if latents < 2:
        return 0.0
    if freedom <= latents:
        raise ValueError(f"need more examples than latents, got {len(values)} of {latents}")
    correlation = np.corrcoef(values.T)
    sign, log_determinant = np.linalg.slogdet(correlation)
    if sign <= 0:
        return float("inf")  # a latent is a linear function of others
    halves = torch.digamma((freedom - torch.arange(latents, dtype=torch.float64)) / 2)
    bias = 0.5 * (halves[0] - halves).sum().item()
    return float(-0.5 * log_determinant - bias)
