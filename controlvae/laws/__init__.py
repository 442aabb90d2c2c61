"""Control laws and schedules: pure functions from a measured KL to a KL weight."""

from controlvae.laws.auto import Auto
from controlvae.laws.base import Feedback, Law, Schedule, State, TuningWarning
from controlvae.laws.capacity import Capacity
from controlvae.laws.geco import Geco
from controlvae.laws.lagrange import LagrangeMultiplier
from controlvae.laws.pi import PI
from controlvae.laws.pid import PID
from controlvae.laws.schedules import Constant, Cyclical, Linear, Points, Sigmoid, Staircase

__all__ = [
    "PI",
    "PID",
    "Auto",
    "Capacity",
    "Constant",
    "Cyclical",
    "Feedback",
    "Geco",
    "LagrangeMultiplier",
    "Law",
    "Linear",
    "Points",
    "Schedule",
    "Sigmoid",
    "Staircase",
    "State",
    "TuningWarning",
]
