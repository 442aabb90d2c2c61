"""Experiments as JSON and from the command line: strict about names and types, with the path of what is wrong."""

import ast
import math
import types
import warnings
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from controlvae import laws as control
from controlvae.errors import UserError, unknown
from controlvae.lab.config.renames import former_names, settings_name
from controlvae.laws import Law, Schedule, TuningWarning

T = TypeVar("T")


def to_dict(value: Any) -> Any:
    """A settings value as JSON data. A dataclass carries its class name under `type`."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "type": settings_name(type(value)),
            **{f.name: to_dict(getattr(value, f.name)) for f in fields(value)},
        }
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"  # JSON has no infinity
    return value


def non_default_fields(value: Any) -> Any:
    """`to_plain` without the fields that stand at their default: what is left when later versions add fields."""
    if not is_dataclass(value) or isinstance(value, type):
        return to_dict(value)
    former = former_names(type(value))
    said = {
        f.name: getattr(value, f.name)
        for f in fields(value)
        if getattr(value, f.name) != _default(f)
    }
    return {
        "type": settings_name(type(value)),
        **{former.get(name, name): non_default_fields(part) for name, part in said.items()},
    }


def iter_settings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by its path and as `--set` takes it: `control`, `PI`; `control.target`, `18.0`; ..."""
    if not is_dataclass(value) or isinstance(value, type):
        yield path, str(value) if isinstance(value, str) else repr(value)
        return
    if path:
        yield path, settings_name(type(value))
    for name in (f.name for f in fields(value)):
        yield from iter_settings(getattr(value, name), f"{path}.{name}".lstrip("."))


def changed_fields(value: Any, other: Any, path: str = "") -> Iterator[str]:
    """The paths at which two settings differ: `data.size`, `control.target`."""
    if type(value) is not type(other) or not is_dataclass(value):
        yield from [path] if value != other else []
        return
    for name in (f.name for f in fields(value)):
        yield from changed_fields(
            getattr(value, name), getattr(other, name), f"{path}.{name}".lstrip(".")
        )


def method_differences(one: Any, other: Any) -> list[str]:
    """The settings in which two experiments are not one: seeds of one method have none."""
    return [path for path in changed_fields(one, other) if path not in _NOT_THE_METHOD]


# Words, the seed, when to look, and a table that training never looks at.
_NOT_THE_METHOD = (
    "name",
    "about",
    "paper",
    "training.seed",
    "training.log_every",
    "training.validate_every",
    "data.factors",
)


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def from_dict(cls: type[T], plain: Any) -> T:
    """The settings value that `to_plain` wrote; a field it lacks takes its default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)  # whoever wrote the file has been warned
        return _structure(cls, plain, "")


def override(value: T, assignments: list[str]) -> T:
    """The value with `part.field=text` assignments applied, each typed and checked against its dataclass.

    They hold together, in any order: a part comes before its fields, and fits are looked at when all are in place.
    """
    changes = []
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise UserError(f"--set takes part.field=value, got {assignment!r}")
        changes.append(_Change(path.strip().split("."), text.strip(), path.strip()))
    return _changed(value, changes, type(value)) if changes else value


class _Change(NamedTuple):
    path: list[str]  # from the value it is applied to
    text: str
    full: str  # the path as it was given


def _changed(value: Any, changes: list[_Change], hint: Any) -> Any:
    first = changes[0]
    if not is_dataclass(value) or isinstance(value, type):
        raise UserError(
            f"--set {first.full}: {first.path[0]!r} is not a field of {value!r}, which is a plain value"
        )
    hints, names, made = get_type_hints(type(value)), [f.name for f in fields(value)], {}
    current_names = {old: new for new, old in former_names(type(value)).items()}
    changes = [
        change._replace(path=[current_names.get(change.path[0], change.path[0]), *change.path[1:]])
        for change in changes
    ]
    for name in dict.fromkeys(change.path[0] for change in changes):
        if name not in names:
            raise _no_field(
                value, next(change for change in changes if change.path[0] == name), hint
            )
        made[name] = getattr(value, name)
        own = [change for change in changes if change.path[0] == name]
        for change in own:
            if len(change.path) == 1:
                made[name] = _structure(hints[name], _read(hints[name], change.text), change.full)
        inner = [change._replace(path=change.path[1:]) for change in own if len(change.path) > 1]
        if inner:
            made[name] = _changed(made[name], inner, hints[name])
    blamed = first.full if len(changes) == 1 else type(value).__name__
    return _build(lambda: replace(value, **made), blamed)


def _no_field(value: Any, change: _Change, hint: Any) -> UserError:
    """That there is no such field; which other settings that could stand here have it, or what it may have meant."""
    name, part = change.path[0], change.full.removesuffix("." + ".".join(change.path))
    others = [
        kind for kind in _settings_classes(_options(hint)) if name in (f.name for f in fields(kind))
    ]
    if not others:
        return unknown(f"field of {type(value).__name__}", name, [f.name for f in fields(value)])
    written = ", ".join(f"{settings_name(kind)}({_least(kind, name)})" for kind in others)
    return UserError(
        f"no field of {type(value).__name__} {name!r}; other kinds of {part} have it: --set '{part}=KIND', "
        f"KIND one of {written}"
    )


def _least(kind: type, name: str) -> str:
    """What must be said of such settings, and this: `target=..., gamma=...`."""
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return ", ".join(f"{each}=..." for each in dict.fromkeys([*needed, name]))


def _read(hint: Any, text: str) -> Any:
    """Text as data for a field; words as they stand, unless quoted: a folder may be called `2024` or `faces (1)`."""
    plain, options = _literal(text), _options(hint)
    as_data = str not in options or text[:1] in "'\"" or (plain is None and type(None) in options)
    return plain if as_data else text


def _literal(text: str) -> Any:
    """Text as data: a number, a name, a tuple, or a constructor such as `PI(target=18)`."""
    try:
        return _from_node(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError):
        return text  # a plain word such as a path


def _from_node(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if any(keyword.arg is None for keyword in keywords):
                raise ValueError("** is not understood here")
            positional = {index: _from_node(arg) for index, arg in enumerate(args)}
            return {
                "type": name,
                **positional,
                **{k.arg: _from_node(k.value) for k in keywords if k.arg},
            }
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_from_node(item) for item in items]
        case ast.Name(id=name):
            return {"none": None, "None": None, "true": True, "false": False}.get(name, name)
        case _:
            return ast.literal_eval(node)


def _structure(hint: Any, plain: Any, path: str) -> Any:
    """`plain` as a value of the annotated type, or an error naming its path."""
    options = _options(hint)
    if plain is None and type(None) in options:
        return None
    for option in options:
        if get_origin(option) is Literal and plain in get_args(option):
            return next(choice for choice in get_args(option) if choice == plain)
        if get_origin(option) is tuple and isinstance(plain, list | tuple):
            return tuple(_structure(get_args(option)[0], item, path) for item in plain)
        if option in _SCALARS:
            ok, value = _SCALARS[option](plain)
            if ok:
                return value
    settings = {settings_name(option): option for option in _settings_classes(options)}
    if settings and isinstance(plain, dict):
        name = plain.get("type", next(iter(settings)) if len(settings) == 1 else None)
        if not isinstance(name, str) or name not in settings:
            raise unknown(f"kind of {path or 'experiment'}", str(name), settings)
        return _structure_settings(settings[name], plain, path)
    if isinstance(plain, str):
        _check_spelling(plain, settings, path)
    raise UserError(
        f"{path or 'experiment'} must be {_describe(options, settings)}, got {_shown(plain)}"
    )


def _check_spelling(text: str, settings: dict[str, type], path: str) -> None:
    """Refuses a constructor that could not be read, with what it probably lacks."""
    kind = settings.get(text.partition("(")[0]) if "(" in text else None
    if kind is None:
        return
    if text.count("(") != text.count(")"):
        raise UserError(f"{path}: {text} cannot be read; close every parenthesis")
    if str in get_type_hints(kind).values():
        example = f'{path}={settings_name(kind)}("my.txt")'
        raise UserError(f"{path}: {text} cannot be read; put words in quotes, as in '{example}'")


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type there is."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _structure_settings(cls: type, plain: dict[Any, Any], path: str) -> Any:
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    current_names = {old: new for new, old in former_names(cls).items()}
    given: dict[str, Any] = {}
    for key, item in plain.items():
        name = names[key] if isinstance(key, int) and key < len(names) else key
        name = current_names.get(name, name)
        if name in given:
            raise UserError(f"{path or cls.__name__} gives {name} twice")
        given[name] = item
    given.pop("type", None)
    for name in given:
        if name not in names:
            raise unknown(f"field of {cls.__name__}", str(name), names)
    for f in fields(cls):
        if f.name not in given and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{path or cls.__name__} lacks {f.name}")
    values = {
        name: _structure(hints[name], item, f"{path}.{name}".lstrip("."))
        for name, item in given.items()
    }
    return _build(lambda: cls(**values), path or cls.__name__)


def _build(make: Any, path: str) -> Any:
    try:
        return make()
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _settings_classes(options: tuple[Any, ...]) -> list[type]:
    """The dataclasses among a union's members; `Schedule`, as a target, stands for every schedule."""
    found: list[type] = []
    for option in options:
        if option is Schedule or option is Law:
            found += [
                c
                for c in vars(control).values()
                if isinstance(c, type) and issubclass(c, option) and is_dataclass(c)
            ]
        elif isinstance(option, type) and is_dataclass(option):
            found.append(option)
    return found


def _as_float(plain: Any) -> tuple[bool, Any]:
    if isinstance(plain, str) and plain in ("inf", "-inf"):
        return True, float(plain)
    try:
        good = isinstance(plain, int | float) and not isinstance(plain, bool)
        return good, float(plain) if good else None
    except OverflowError:  # a whole number of hundreds of digits
        return False, None


def _as_int(plain: Any) -> tuple[bool, Any]:
    good = not isinstance(plain, bool) and (
        isinstance(plain, int) or (isinstance(plain, float) and plain.is_integer())
    )
    return good, int(plain) if good else None


_SCALARS: dict[Any, Any] = {
    float: _as_float,
    int: _as_int,
    bool: lambda plain: (isinstance(plain, bool), plain),
    str: lambda plain: (isinstance(plain, str), plain),
}


def _describe(options: tuple[Any, ...], settings: dict[str, type]) -> str:
    words = [
        "one of " + ", ".join(map(repr, get_args(o)))
        if get_origin(o) is Literal
        else "a list"
        if get_origin(o) is tuple
        else {float: "a number", int: "a whole number", bool: "true or false", str: "text"}.get(
            o, ""
        )
        for o in options
    ]
    words += [f"{name}(...)" for name in settings] + (["none"] if type(None) in options else [])
    return " or ".join(word for word in words if word)


def _shown(plain: Any) -> str:
    return f"{plain['type']}(...)" if isinstance(plain, dict) and "type" in plain else repr(plain)
