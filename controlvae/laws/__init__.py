"""Control laws and schedules: pure functions from a measured KL to a KL weight."""

from controlvae.laws.auto import Auto
from controlvae.laws.base import Feedback, Law, Schedule
from controlvae.laws.capacity import Capacity
from controlvae.laws.gain_rules import TuningWarning
from controlvae.laws.geco import Geco
from controlvae.laws.lagrange import LagrangeMultiplier
from controlvae.laws.pi import PI
from controlvae.laws.pid import PID
from controlvae.laws.schedules import Constant, Cyclical, Linear, Points, Sigmoid, Staircase
from controlvae.laws.states import AutoState, IntegralState, PIDState, PIState, ScheduleState

__all__ = [
    "PI",
    "PID",
    "Auto",
    "AutoState",
    "Capacity",
    "Constant",
    "Cyclical",
    "Feedback",
    "Geco",
    "IntegralState",
    "LagrangeMultiplier",
    "Law",
    "Linear",
    "PIDState",
    "PIState",
    "Points",
    "Schedule",
    "ScheduleState",
    "Sigmoid",
    "Staircase",
    "TuningWarning",
]
