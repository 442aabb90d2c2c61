"""Posterior collapse: thresholds, the count of used latents and advice."""

from collections.abc import Collection, Iterable

#: Total KL in nats per example below which a code counts as collapsed.
COLLAPSE_THRESHOLD = 0.1
#: KL in nats from which a latent counts as used. Latents that training switched off end near 1e-4.
USED_LATENT_NATS = 0.01

COLLAPSE_REMEDY = (
    "the decoder ignores the code. Check that reconstruction and KL have the same units; "
    "then control the KL with a target, e.g. Auto(target=3.0): start low and raise it"
)


def count_used_latents(kl_per_latent: Iterable[float | None]) -> int:
    """Count the latents whose KL is at least 0.01 nats per example.

    This is the one count of used latents: training progress, `Health`, `evaluate` and reports all
    call it. `controlvae.metrics.active_units` answers another question. It counts the latents whose
    posterior mean differs between examples (Burda et al. 2016), and it needs the means.

    None is not counted: JSON files have it in place of a number that is not finite.

    >>> count_used_latents([3.2, 0.8, 0.0004])
    2
    """
    return sum(nats is not None and nats >= USED_LATENT_NATS for nats in kl_per_latent)


def describe_used_latents(kl_per_latent: Collection[float | None]) -> str:
    """Return the count of used latents as text, such as `11 of 16`."""
    return f"{count_used_latents(kl_per_latent)} of {len(kl_per_latent)}"


def constant_posterior_warning(kl: float, active_units: int) -> str | None:
    """Return a warning if the code has KL but its means are equal for all examples, else None."""
    if active_units > 0 or kl < COLLAPSE_THRESHOLD:
        return None
    return (
        f"the code carries no information: its KL is {kl:.2f} nats, but no posterior mean differs "
        "between examples; train longer, or start with a weight near 1"
    )
