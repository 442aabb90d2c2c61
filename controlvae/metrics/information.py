"""How much of the latent code is in use."""

from typing import Any

import numpy as np

from controlvae.metrics.arrays import host_array


def active_units(means: Any, threshold: float = 0.01) -> int:
    r"""Latents whose posterior mean varies with the input: :math:`\mathrm{Var}_x[\mu_j(x)] > 0.01`.

    Burda et al., *Importance Weighted Autoencoders*, 2016.

    Args:
        means: posterior means, (examples, latents).
        threshold: the least variance that counts as active.
    """
    values = host_array(means).astype(np.float64)
    if values.ndim != 2 or len(values) < 2:
        raise ValueError(f"means must be (examples, latents) with two examples or more, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("means must be finite")
    return int((values.var(axis=0) > threshold).sum())
