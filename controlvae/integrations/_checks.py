"""Checks shared by the integrations: the framework is installed, and the law controls the KL."""

from collections.abc import Iterator
from contextlib import contextmanager

from controlvae.errors import UserError
from controlvae.laws import Law


@contextmanager
def require_packages(packages: str) -> Iterator[None]:
    """Add the `pip install` command to the error of an import that fails inside the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error.msg}: pip install {packages}", name=error.name) from None


def require_kl_law(law: Law) -> Law:
    """Return the law, or raise if it is not a law or controls the reconstruction."""
    if not isinstance(law, Law):
        raise UserError(f"law must be a law such as Auto(target=18.0), got {law!r}")
    if law.controls_reconstruction:
        raise UserError(
            f"law must control the KL, but {type(law).__name__} controls the reconstruction; "
            "use Auto or PI"
        )
    return law
