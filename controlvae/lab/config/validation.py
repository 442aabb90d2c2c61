"""How settings are checked."""

from typing import Any, Literal, get_args, get_origin, get_type_hints


def require(condition: bool, message: str) -> None:
    """Settings are checked once, where they are made, and the message gives the value received."""
    if not condition:
        raise ValueError(message)


def check_choices(settings: Any) -> None:
    """Every field that is one of a few words or numbers must be one of them."""
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal:
            *most, last = map(str, get_args(hint))
            given = getattr(settings, name)
            require(
                given in get_args(hint),
                f"{name} must be {', '.join(most)} or {last}, got {given!r}",
            )
