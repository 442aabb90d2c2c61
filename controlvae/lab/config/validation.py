"""Checks of settings, made once when a settings object is created."""

import math
from typing import Any, Literal, get_args, get_origin, get_type_hints


def require(condition: bool, message: str) -> None:
    """Raise ValueError with the message if the condition is false."""
    if not condition:
        raise ValueError(message)


def require_positive(settings: Any, *names: str) -> None:
    """Raise ValueError if one of these fields is neither None nor a positive, finite number."""
    for name in names:
        value = getattr(settings, name)
        is_valid = value is None or 0 < value < math.inf
        require(is_valid, f"{name} must be positive, got {value}")


def check_choices(settings: Any) -> None:
    """Raise ValueError if a field annotated with `Literal` has another value."""
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal:
            *others, last = map(str, get_args(hint))
            value = getattr(settings, name)
            require(
                value in get_args(hint),
                f"{name} must be {', '.join(others)} or {last}, got {value!r}",
            )
