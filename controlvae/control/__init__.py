"""Laws, schedules and the controller that holds one. Needs torch alone."""

from controlvae.control.auto import Auto
from controlvae.control.capacity import Capacity
from controlvae.control.controller import Controller
from controlvae.control.geco import Geco
from controlvae.control.lagrange import LagrangeMultiplier
from controlvae.control.law import Feedback, Law, Schedule, State, TuningWarning
from controlvae.control.pi import PI
from controlvae.control.pid import PID
from controlvae.control.plant import Plant, simulate
from controlvae.control.probe import measure_target
from controlvae.control.schedules import Constant, Cyclical, Linear, Points, Sigmoid, Staircase
from controlvae.control.tuning import Advice, TargetRange, advise, gain_bound, kp_limit, target_range

__all__ = [
    "PI", "PID", "Advice", "Auto", "Capacity", "Constant", "Controller", "Cyclical", "Feedback", "Geco",
    "LagrangeMultiplier", "Law", "Linear", "Plant", "Points", "Schedule", "Sigmoid", "Staircase", "State",
    "TargetRange", "TuningWarning", "advise", "gain_bound", "kp_limit", "measure_target", "simulate", "target_range",
]  # fmt: skip
