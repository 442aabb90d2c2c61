"""A thermostat for variational autoencoders: say how many nats the latent code carries, and the KL weight follows.

The names below load on first use, so that `controlvae --help` starts without importing torch.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = ("control", "experiments", "data", "models", "objectives", "training", "metrics", "report")
_FROM_CONTROL = (
    "PI", "PID", "Auto", "Capacity", "Constant", "Controller", "Cyclical", "Geco", "LagrangeMultiplier", "Linear",
    "Plant", "Points", "Sigmoid", "Staircase", "TuningWarning", "advise", "gain_bound", "kp_limit", "measure_target",
    "simulate", "target_range",
)  # fmt: skip
_FROM_METRICS = ("Health",)

__all__ = [*_FROM_CONTROL, *_FROM_METRICS, *_ROOMS, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _FROM_CONTROL:
        return getattr(importlib.import_module("controlvae.control"), name)
    if name in _FROM_METRICS:
        return getattr(importlib.import_module("controlvae.metrics"), name)
    if name in _ROOMS:
        return importlib.import_module(f"controlvae.{name}")
    raise AttributeError(f"module 'controlvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
