"""Checks of settings, made once when a settings object is created."""

import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

MAX_WIDTH, MAX_LAYERS = 1_000_000, 1_000


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


def require_width(settings: Any, *names: str) -> None:
    """Raise ValueError if one of these sizes of a network is not in 1..1,000,000.

    A larger one is a typing error, and torch would fail with an overflow or build for minutes.
    """
    for name in names:
        value = getattr(settings, name)
        widths = value if isinstance(value, tuple) else (value,)
        require(len(widths) <= MAX_LAYERS, f"{name} must name at most {MAX_LAYERS} layers")
        for width in widths:
            require(
                0 < width <= MAX_WIDTH,
                f"{name} must be positive and at most {MAX_WIDTH:,}, got {width:g}",
            )


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
