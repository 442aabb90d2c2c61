"""Control laws and schedules: pure functions from a measured KL to a KL weight."""

from controlvae.laws.adaptive_kl import AdaptiveKL
from controlvae.laws.auto import Auto
from controlvae.laws.base import Feedback, Law, Schedule
from controlvae.laws.capacity import Capacity
from controlvae.laws.gain_rules import TuningWarning
from controlvae.laws.geco import Geco
from controlvae.laws.incremental_pi import IncrementalPI
from controlvae.laws.lagrange import LagrangeMultiplier
from controlvae.laws.log_lagrange import LogLagrange
from controlvae.laws.nupi import NuPI
from controlvae.laws.pi import PI
from controlvae.laws.pid import PID
from controlvae.laws.schedules import Constant, Cyclical, Linear, Points, Sigmoid, Staircase
from controlvae.laws.states import (
    AutoState,
    IntegralState,
    LogLagrangeState,
    PIDState,
    PIState,
    ScheduleState,
)

__all__ = [
    "PI",
    "PID",
    "AdaptiveKL",
    "Auto",
    "AutoState",
    "Capacity",
    "Constant",
    "Cyclical",
    "Feedback",
    "Geco",
    "IncrementalPI",
    "IntegralState",
    "LagrangeMultiplier",
    "Law",
    "Linear",
    "LogLagrange",
    "LogLagrangeState",
    "NuPI",
    "PIDState",
    "PIState",
    "Points",
    "Schedule",
    "ScheduleState",
    "Sigmoid",
    "Staircase",
    "TuningWarning",
]
