"""Settings as JSON data: written with `to_dict`, read with `from_dict`."""

import math
import warnings
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from controlvae.lab.config.parsing import parse_value
from controlvae.lab.config.renames import (
    RenamedWarning,
    former_defaults,
    former_names,
    settings_name,
)
from controlvae.laws import TuningWarning

T = TypeVar("T")


def is_settings(value: Any) -> bool:
    """Return whether a value is an instance of a settings dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def to_dict(value: Any) -> Any:
    """Return a settings value as JSON data. A dataclass has its class name under `type`."""
    if is_settings(value):
        contents = {f.name: to_dict(getattr(value, f.name)) for f in fields(value)}
        return {"type": settings_name(type(value)), **contents}
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"  # JSON has no infinity
    return value


def from_dict(cls: type[T], data: Any) -> T:
    """Return the settings value that `to_dict` wrote.

    Fields that are missing take their default, and former names of fields are accepted. Warnings
    are suppressed, because the user saw them when the file was written.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        warnings.simplefilter("ignore", RenamedWarning)
        value: T = parse_value(cls, data, "")
        return value


def non_default_fields(value: Any, *, as_first_written: bool = False) -> Any:
    """Return `to_dict(value)` without fields that have their default value.

    The result does not change when a later version adds a field.

    Args:
        value: A settings value.
        as_first_written: Use the former names of renamed fields and the former values of changed
            defaults, so that digests of settings stay the same.
    """
    if not is_settings(value):
        return to_dict(value)
    kind = type(value)
    names, defaults = (former_names(kind), former_defaults(kind)) if as_first_written else ({}, {})
    contents = {
        names.get(f.name, f.name): non_default_fields(
            getattr(value, f.name), as_first_written=as_first_written
        )
        for f in fields(value)
        if getattr(value, f.name) != defaults.get(f.name, _default(f))
    }
    return {"type": settings_name(kind), **contents}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
