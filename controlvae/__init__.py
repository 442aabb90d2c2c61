"""A thermostat for variational autoencoders: say how many nats the latent code carries, and the KL weight follows.

The names below load on first use, so that `controlvae --help` starts without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from controlvae import control, data, experiments, metrics, models, objectives, report, training
    from controlvae.control import (
        PI,
        PID,
        Auto,
        Capacity,
        Constant,
        Controller,
        Cyclical,
        Geco,
        LagrangeMultiplier,
        Linear,
        Plant,
        Points,
        Sigmoid,
        Staircase,
        TuningWarning,
        advise,
        gain_bound,
        kp_limit,
        measure_target,
        simulate,
        target_range,
    )
    from controlvae.metrics import Health

__version__ = "0.1.0"

__all__ = [
    "PI", "PID", "Auto", "Capacity", "Constant", "Controller", "Cyclical", "Geco", "Health", "LagrangeMultiplier",
    "Linear", "Plant", "Points", "Sigmoid", "Staircase", "TuningWarning", "__version__", "advise", "control", "data",
    "experiments", "gain_bound", "kp_limit", "measure_target", "metrics", "models", "objectives", "report", "simulate",
    "target_range", "training",
]  # fmt: skip
_ROOMS = ("control", "experiments", "data", "models", "objectives", "training", "metrics", "report")


if not TYPE_CHECKING:  # a checker would believe that it knows every name

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return importlib.import_module(f"controlvae.{name}")
        if name in __all__:
            room = "metrics" if name == "Health" else "control"
            return getattr(importlib.import_module(f"controlvae.{room}"), name)
        raise AttributeError(f"module 'controlvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
