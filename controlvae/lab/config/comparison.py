"""Comparison of settings: the paths of the fields in which two experiments differ."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from controlvae.lab.config.serialization import is_settings

# Descriptions, the seed, logging intervals, and a table that training does not read.
_NOT_PART_OF_THE_METHOD = (
    "name",
    "about",
    "paper",
    "training.seed",
    "training.log_every",
    "training.validate_every",
    "data.factors",
)


def changed_fields(value: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two settings differ: `data.size`, `control.target`.

    Args:
        value: Settings.
        other: Settings to compare with.
        path: The path of both values within an experiment.
    """
    if type(value) is not type(other) or not is_settings(value):
        if value != other:
            yield path
        return
    for name in (f.name for f in fields(value)):
        inner = f"{path}.{name}".lstrip(".")
        yield from changed_fields(getattr(value, name), getattr(other, name), inner)


def method_differences(first: Any, second: Any) -> list[str]:
    """Return the paths in which two experiments differ as methods.

    The list is empty for runs that are seeds of one method.
    """
    paths = changed_fields(first, second)
    return [path for path in paths if path not in _NOT_PART_OF_THE_METHOD]
