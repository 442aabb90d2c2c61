"""What a framework hands to a law, and the laws that need something else."""

from controlvae.errors import UserError
from controlvae.laws import Law


def on_the_kl(law: Law) -> Law:
    """The law, if it is one and the KL is what it measures."""
    if not isinstance(law, Law):
        raise UserError(f"law must be a law such as Auto(target=18.0), got {law!r}")
    if law.holds_reconstruction:
        raise UserError(
            f"{type(law).__name__} watches the reconstruction, and gets the KL here: take Auto or PI"
        )
    return law
