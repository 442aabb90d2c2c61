"""Choice of gains and targets: rules of the paper, and a search for the reachable KL."""

from controlvae.laws.gain_rules import kp_limit
from controlvae.tuning.advice import Advice, advise
from controlvae.tuning.elbo_cost import elbo_cost, target_for
from controlvae.tuning.rules import TargetRange, gain_bound, target_range
from controlvae.tuning.target_search import measure_target

__all__ = [
    "Advice",
    "TargetRange",
    "advise",
    "elbo_cost",
    "gain_bound",
    "kp_limit",
    "measure_target",
    "target_for",
    "target_range",
]
