"""Control of the KL of variational autoencoders: set a target in nats, and β moves to reach it.

Names load on first use, so that `controlvae --help` starts without importing torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors
    from controlvae import diagnostics, distributions, lab, laws, metrics, paper, simulation, tuning
    from controlvae.certificate import Certificate, speed_limit
    from controlvae.controller import Controller
    from controlvae.controllers import Controllers
    from controlvae.diagnostics.health import Health
    from controlvae.errors import ControlError, ControlWarning
    from controlvae.laws import (
        PI,
        PID,
        AdaptiveKL,
        Auto,
        Capacity,
        Constant,
        Cyclical,
        Geco,
        IncrementalPI,
        LagrangeMultiplier,
        Linear,
        LogLagrange,
        NuPI,
        Points,
        Sigmoid,
        Staircase,
        TuningWarning,
    )
    from controlvae.simulation import Plant, simulate
    from controlvae.tuning import (
        advise,
        elbo_cost,
        gain_bound,
        kp_limit,
        measure_target,
        target_for,
        target_range,
    )

__version__ = "0.2.0"

_MODULES = (
    "diagnostics",
    "distributions",
    "integrations",
    "lab",
    "laws",
    "metrics",
    "paper",
    "simulation",
    "tuning",
)
# Module of each public name. All other public names are laws.
_HOMES = {
    "Certificate": "certificate",
    "ControlError": "errors",
    "ControlWarning": "errors",
    "Controller": "controller",
    "Controllers": "controllers",
    "Health": "diagnostics.health",
    "Plant": "simulation",
    "simulate": "simulation",
    "speed_limit": "certificate",
    "advise": "tuning",
    "elbo_cost": "tuning",
    "gain_bound": "tuning",
    "kp_limit": "tuning",
    "measure_target": "tuning",
    "target_for": "tuning",
    "target_range": "tuning",
}
__all__ = [
    "PI",
    "PID",
    "AdaptiveKL",
    "Auto",
    "Capacity",
    "Certificate",
    "Constant",
    "ControlError",
    "ControlWarning",
    "Controller",
    "Controllers",
    "Cyclical",
    "Geco",
    "Health",
    "IncrementalPI",
    "LagrangeMultiplier",
    "Linear",
    "LogLagrange",
    "NuPI",
    "Plant",
    "Points",
    "Sigmoid",
    "Staircase",
    "TuningWarning",
    "__version__",
    "advise",
    "diagnostics",
    "distributions",
    "elbo_cost",
    "gain_bound",
    "kp_limit",
    "lab",
    "laws",
    "measure_target",
    "metrics",
    "paper",
    "simulate",
    "simulation",
    "speed_limit",
    "target_for",
    "target_range",
    "tuning",
]


# A type checker would otherwise accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"controlvae.{name}")
        if name in __all__:
            return getattr(importlib.import_module(f"controlvae.{_HOMES.get(name, 'laws')}"), name)
        raise AttributeError(f"module 'controlvae' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
