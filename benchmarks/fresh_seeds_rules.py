"""Rules that say whether a run failed to disentangle. They were fixed before the runs."""

RULE_STEP = 60_000  # the step of the label-free rule
MIN_SEPARATION = 0.85  # S of a run that is predicted to succeed
MIN_SHARE_OF_MEDIAN = 0.8  # MIG of a run that succeeds, relative to the median of its row
MIN_R2 = 0.9  # of a position and the latent most correlated with it


def separation(nats: list[float]) -> float:
    """Return S = (k₂ − k₃) / k₁ of the three latents with the largest KL."""
    first, second, third = sorted(nats, reverse=True)[:3]
    return (second - third) / first
