"""Rules that say whether a run failed to disentangle. They were fixed before the runs."""

from controlvae.diagnostics.separation import MIN_SEPARATION
from controlvae.diagnostics.separation import latent_separation as separation

__all__ = ["MIN_R2", "MIN_SEPARATION", "MIN_SHARE_OF_MEDIAN", "RULE_STEP", "separation"]

RULE_STEP = 60_000  # the step of the label-free rule
MIN_SHARE_OF_MEDIAN = 0.8  # MIG of a run that succeeds, relative to the median of its row
MIN_R2 = 0.9  # of a position and the latent most correlated with it
