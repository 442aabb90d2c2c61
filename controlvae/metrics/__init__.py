"""Metrics as functions of arrays: usable on anyone's model. Plain numbers or a named record come out."""

from controlvae.metrics.information import active_units
from controlvae.metrics.step_response import StepResponse, step_response

__all__ = ["StepResponse", "active_units", "step_response"]
