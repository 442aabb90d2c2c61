"""Metrics as functions of arrays: usable on anyone's model. Plain numbers or a named record come out."""

from controlvae.metrics.information import active_units
from controlvae.metrics.mig import MIG, mig, mig_histogram, mig_sampled
from controlvae.metrics.rmig import rmig
from controlvae.metrics.step_response import StepResponse, step_response

__all__ = ["MIG", "StepResponse", "active_units", "mig", "mig_histogram", "mig_sampled", "rmig", "step_response"]
