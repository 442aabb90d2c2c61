"""Conversion of JSON data to typed settings. Errors name the path of the wrong setting."""

import math
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from controlvae import laws
from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.config.data import DataSettings
from controlvae.lab.config.renames import current_field_name, settings_name, warn_renamed
from controlvae.lab.reading import shorten
from controlvae.laws import Law, Schedule


def parse_value(hint: Any, data: Any, path: str) -> Any:
    """Return JSON data as a value of the annotated type.

    Args:
        hint: The type annotation of the setting.
        data: A number, string, list, None, or a dict with the name of a settings class under
            `type`. Integer keys of a dict are positional arguments.
        path: The path of the setting, for error messages. Empty for a whole experiment.

    Raises:
        UserError: The data does not fit the annotation.
    """
    options = union_members(hint)
    if data is None and type(None) in options:
        return None
    for option in options:
        if get_origin(option) is Literal and _is_choice(data, option):
            return next(choice for choice in get_args(option) if choice == data)
        if get_origin(option) is tuple and isinstance(data, list | tuple):
            return tuple(parse_value(get_args(option)[0], item, path) for item in data)
        if option in _SCALAR_PARSERS:
            is_valid, value = _SCALAR_PARSERS[option](data)
            if is_valid:
                return value
    classes = {settings_name(cls): cls for cls in settings_classes(hint)}
    if classes and isinstance(data, dict):
        name = data.get("type", next(iter(classes)) if len(classes) == 1 else None)
        if not isinstance(name, str) or name not in classes:
            raise unknown_name_error(f"kind of {path or 'experiment'}", str(name), classes)
        return _parse_settings(classes[name], data, path)
    if isinstance(data, str):
        _check_constructor(data, classes, path)
    hint_text = ""
    is_number, number = _parse_float(data)
    if "Auto" in classes and path == "control" and is_number and math.isfinite(number):
        hint_text = f"; for another target write control.target={number:g}"
    raise UserError(
        f"{path or 'experiment'} must be {_describe_options(options, classes)}, "
        f"got {_format_data(data)}{hint_text}"
    )


def _is_choice(data: Any, option: Any) -> bool:
    """Return whether data is one of the values of a `Literal`, and of its type."""
    choices = get_args(option)
    return any(
        isinstance(data, bool) == isinstance(each, bool) and data == each for each in choices
    )


def build_settings(construct: Callable[[], Any], path: str) -> Any:
    """Return `construct()`. Raise its ValueError as a `UserError` that starts with the path."""
    try:
        return construct()
    except (ValueError, TypeError, ArithmeticError) as error:
        raise UserError(f"{path}: {error}") from None


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union type, or the type itself in a tuple."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def settings_classes(hint: Any) -> list[type]:
    """Return the settings classes that a field with this annotation accepts.

    `Law`, `Schedule` and `DataSettings` stand for all of their subclasses.
    """
    classes: list[type] = []
    for option in union_members(hint):
        if option is Schedule or option is Law:
            candidates = [c for c in vars(laws).values() if isinstance(c, type)]
            classes += [c for c in candidates if issubclass(c, option) and is_dataclass(c)]
        elif option is DataSettings:
            # Data sets may define their settings next to their reader, so all readers are imported.
            # The registry is named here, because the configuration must not depend on the data.
            import_module("controlvae.lab.data.registry").dataset_specs()
            classes += _leaf_classes(DataSettings)
        elif isinstance(option, type) and is_dataclass(option):
            classes.append(option)
    return classes


def required_fields(cls: type) -> list[str]:
    """Return the names of a settings class's fields that have no default."""
    return [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]


def example_constructor(cls: type) -> str:
    """Return a constructor call that a user may type: `Auto(18)`, `TextFile("my/data")`."""
    hints = get_type_hints(cls)
    examples = {name: _EXAMPLES.get(hints[name], "...") for name in required_fields(cls)}
    if "target" in examples:
        examples["target"] = "18"
    first, *others = examples.items() or [("", "")]
    arguments = [first[1], *(f"{name}={value}" for name, value in others)]
    return f"{settings_name(cls)}({', '.join(arguments)})"


def _outline_constructor(cls: type) -> str:
    """Return a call with the names of the required fields: `Auto(TARGET)`."""
    return f"{settings_name(cls)}({', '.join(map(str.upper, required_fields(cls)))})"


_EXAMPLES: dict[Any, str] = {str: '"my/data"'}


def _leaf_classes(base: type) -> list[type]:
    children: list[type] = base.__subclasses__()
    return [leaf for child in children for leaf in _leaf_classes(child)] if children else [base]


def _parse_settings(cls: type, data: dict[Any, Any], path: str) -> Any:
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    arguments: dict[str, Any] = {}
    for key, item in data.items():
        if key == "type":
            continue
        given = names[key] if isinstance(key, int) and key < len(names) else str(key)
        name = current_field_name(cls, given)
        if name != given:
            warn_renamed("setting", given, name)
        if name in arguments:
            raise UserError(f"{path or settings_name(cls)} gives {name} twice")
        if name not in names:
            raise unknown_name_error(f"field of {settings_name(cls)}", name, names)
        arguments[name] = item
    for name in required_fields(cls):
        if name not in arguments:
            example = f"{path}={example_constructor(cls)}" if path else example_constructor(cls)
            raise UserError(f"{path or settings_name(cls)} lacks {name}; write, e.g., {example}")
    values = {
        name: parse_value(hints[name], item, f"{path}.{name}".lstrip("."))
        for name, item in arguments.items()
    }
    return build_settings(lambda: cls(**values), path or settings_name(cls))


def _check_constructor(text: str, classes: dict[str, type], path: str) -> None:
    """Raise a helpful error if text looks like a constructor that could not be parsed."""
    name = text.partition("(")[0].strip()
    named = {each.lower(): each for each in classes}
    cls = classes.get(named.get(name.lower(), name))
    if cls is None:
        return
    if "(" not in text:
        raise UserError(
            f"{path}: write {path}={_outline_constructor(cls)}, e.g. {path}={example_constructor(cls)}"
        )
    if text.count("(") != text.count(")"):
        raise UserError(f"{path}: {text} cannot be read; close every parenthesis")
    if str in get_type_hints(cls).values():
        example = f'{path}={settings_name(cls)}("my.txt")'
        raise UserError(f"{path}: {text} cannot be read; put words in quotes, as in '{example}'")


def _parse_float(data: Any) -> tuple[bool, Any]:
    if isinstance(data, str) and data in ("inf", "-inf"):
        return True, float(data)
    try:
        is_number = isinstance(data, int | float) and not isinstance(data, bool)
        return is_number, float(data) if is_number else None
    except OverflowError:  # an integer with hundreds of digits
        return False, None


def _parse_int(data: Any) -> tuple[bool, Any]:
    is_whole = isinstance(data, int) or (isinstance(data, float) and data.is_integer())
    is_valid = is_whole and not isinstance(data, bool)
    return is_valid, int(data) if is_valid else None


_SCALAR_PARSERS: dict[Any, Callable[[Any], tuple[bool, Any]]] = {
    float: _parse_float,
    int: _parse_int,
    bool: lambda data: (isinstance(data, bool), data),
    str: lambda data: (isinstance(data, str), data),
}
_SCALAR_NAMES = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def _describe_options(options: tuple[Any, ...], classes: dict[str, type]) -> str:
    names = []
    for option in options:
        if get_origin(option) is Literal:
            names.append("one of " + ", ".join(map(repr, get_args(option))))
        elif get_origin(option) is tuple:
            names.append("a list")
        elif option in _SCALAR_NAMES:
            names.append(_SCALAR_NAMES[option])
    names += [f"{name}(...)" for name in classes]
    names += ["none"] if type(None) in options else []
    return " or ".join(names)


def _format_data(data: Any) -> str:
    if isinstance(data, dict) and "type" in data:
        return f"{shorten(data['type'])}(...)"
    return shorten(data) if not isinstance(data, str) else shorten(repr(data))
