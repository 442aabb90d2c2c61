"""Checks shared by the integrations: the framework is installed, and the law suits its quantity."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from controlvae.errors import UserError
from controlvae.laws import Auto, Law


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


def as_entropy_law(target: float | Law, weight: float = 0.0) -> Law:
    """Return the law of an entropy bonus. A number means `Auto`.

    Args:
        target: Target of the entropy, or a law.
        weight: Weight at which `Auto` starts. Zero means its default.
    """
    if not isinstance(target, Law):
        start: dict[str, Any] = {"beta_init": float(weight)} if weight > 0 else {}
        return Auto(target, direction="inverse", **start)
    if getattr(target, "direction", "inverse") != "inverse":
        raise UserError(
            f'the law of an entropy must have direction="inverse", got {target}: '
            "an entropy grows with its weight"
        )
    return require_kl_law(target)
