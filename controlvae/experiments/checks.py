"""How settings are checked."""


def require(condition: bool, message: str) -> None:
    """Settings are checked once, where they are made, and the message gives the value received."""
    if not condition:
        raise ValueError(message)
