"""When a latent code has collapsed, and what to do about it."""

COLLAPSED = 0.1  # nats per example: below this in all, the decoder has nothing to read
UNUSED = 0.01  # nats of one latent: those that training switched off end near 1e-4

REMEDY = (
    "the decoder ignores the code. See that reconstruction and KL are in the same units; then hold the KL at a target, "
    "e.g. Auto(target=3.0), begin low and raise it"
)


def constant_posterior_warning(kl: float, active_units: int) -> str | None:
    """A word on a code with nats whose means are the same for every example; None where it is not so."""
    if active_units > 0 or kl < COLLAPSED:
        return None
    return (
        f"the code tells nothing: {kl:.2f} nats, and no latent whose mean differs from example to example; train "
        f"longer, or begin with a weight near 1"
    )


def count_active(kl_per_latent: list[float]) -> int:
    """How many latents have nats. Whether they tell examples apart is for active units to say."""
    return sum(nats >= UNUSED for nats in kl_per_latent)
