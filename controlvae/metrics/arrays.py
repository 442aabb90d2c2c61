"""Anything a caller may hold, as an array on the host."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def host_array(given: Any) -> np.ndarray:
    """An array of a list, an array, or a tensor on any device, with or without a gradient."""
    if not isinstance(given, Tensor):
        return np.ascontiguousarray(given) if np.ndim(given) else np.asarray(given)
    given = given.detach().cpu()
    return (given.float() if given.dtype == torch.bfloat16 else given).numpy()
