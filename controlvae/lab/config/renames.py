"""Names of settings classes, and former names and defaults of settings."""

import warnings


class RenamedWarning(UserWarning):
    """A preset, setting or table was given under its former name."""


def warn_renamed(kind: str, former: str, current: str) -> None:
    """Warn in one line that a preset, setting or table has a new name.

    Args:
        kind: "preset", "setting" or "table".
        former: The name that was given.
        current: The present name.
    """
    message = f"the {kind} {former!r} is now called {current!r}; the former name still works"
    warnings.warn(message, RenamedWarning, stacklevel=4)


def settings_name(cls: type) -> str:
    """Return the name of a settings class in JSON and on the command line.

    This is the class's `type_name` if it has one (`ConvVAEConfig` is written `ConvVAE`), and
    otherwise the name of the class.
    """
    name: str = getattr(cls, "type_name", cls.__name__)
    return name


def former_names(cls: type) -> dict[str, str]:
    """Return the former name of each renamed field: `{"kl_weights": "prices"}`."""
    names: dict[str, str] = getattr(cls, "former_names", {})
    return names


def former_defaults(cls: type) -> dict[str, object]:
    """Return the former default of each field whose default has changed: `{"beta_min": 1e-6}`."""
    defaults: dict[str, object] = getattr(cls, "former_defaults", {})
    return defaults


def current_field_name(cls: type, name: str) -> str:
    """Return the present name of a field that may be given under its former name."""
    return next((new for new, old in former_names(cls).items() if old == name), name)
