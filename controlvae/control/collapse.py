"""When a latent code has collapsed, and what to do about it."""

COLLAPSED = 0.1  # nats per example: below this in all, the decoder has nothing to read
UNUSED = 0.01  # nats of one latent: those that training switched off end near 1e-4

REMEDY = (
    "the decoder ignores the code. See that reconstruction and KL are in the same units; then hold the KL at a target, "
    "e.g. Auto(target=3.0), begin low and raise it"
)


def in_use(kl_per_latent: list[float]) -> int:
    """How many latents carry anything."""
    return sum(nats >= UNUSED for nats in kl_per_latent)
