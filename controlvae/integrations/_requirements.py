"""A framework that is not installed: the error names the command that brings it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(packages: str) -> Iterator[None]:
    """Around the imports of a framework: what pip is to install where they fail."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error.msg}: pip install {packages}", name=error.name) from None
