"""Overrides of settings, `part.field=value`, as `--set` and `--vary` take them."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar, get_type_hints

from controlvae.errors import UserError, unknown_name_error
from controlvae.lab.config.parsing import (
    build_settings,
    parse_value,
    required_fields,
    settings_classes,
    union_members,
)
from controlvae.lab.config.renames import current_field_name, settings_name, warn_renamed
from controlvae.lab.config.serialization import is_settings
from controlvae.lab.reading import check_nested_text

T = TypeVar("T")

# Names that other libraries use for our settings.
_SYNONYMS = {
    "lr": "rate",
    "learning_rate": "rate",
    "batch_size": "batch",
    "max_steps": "steps",
    "iterations": "steps",
    "latent_dim": "latents",
    "z_dim": "latents",
    "kl": "target",
    "kl_target": "target",
    "set_point": "target",
    "setpoint": "target",
    "gradient_clip": "clip",
    "max_grad_norm": "clip",
    "image_size": "size",
    "folder": "path",
    "epochs": "steps",
    "gain": "kp",
    "n_latents": "latents",
    "random_seed": "seed",
}
# Parts of an experiment under the names that other libraries use.
_PARTS = {"law": "control", "controller": "control", "dataset": "data", "network": "model"}
_PARTS |= {"optimizer": "optimiser", "loss": "objective", "trainer": "training"}
# Names of options of commands, which are no settings.
_OPTIONS = (
    *("device", "devices", "seeds", "threads", "run", "logger", "time_limit", "checkpoint_every"),
    *("data_root", "cluster"),
)
_FLAGS = ("tensorboard", "wait", "dry_run")


def iter_settings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting as (path, text), in the form that `--set` takes.

    A part comes before its fields: ("control", "PI"), ("control.target", "18.0"), ...
    """
    if not is_settings(value):
        yield path, str(value) if isinstance(value, str) else repr(value)
        return
    if path:
        yield path, settings_name(type(value))
    for f in fields(value):
        yield from iter_settings(getattr(value, f.name), f"{path}.{f.name}".lstrip("."))


def override(value: T, assignments: list[str]) -> T:
    """Return settings with `part.field=value` assignments applied.

    Every assignment is parsed and checked against its dataclass. Their order does not matter: a
    part is replaced before its fields are, and the result is validated as a whole.

    Args:
        value: The settings to start from, usually a preset.
        assignments: Texts such as `control.target=18` or `control=PI(18)`.

    Raises:
        UserError: An assignment names no setting or its value does not fit.
    """
    changes = []
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise UserError(f"--set takes part.field=value, got {assignment!r}")
        changes.append(_Change(path.strip().split("."), text.strip(), path.strip(), value))
    return _apply(value, changes, type(value)) if changes else value


def split_values(text: str) -> list[str]:
    """Split `control.target=14,16.5` into its two assignments.

    Commas inside parentheses or quotes belong to a value.
    """
    path, equals, values = text.partition("=")
    pieces, depth, quote = [""], 0, ""
    for character in values:
        quote = "" if character == quote else quote or (character if character in "'\"" else "")
        depth += (character in "([") - (character in ")]") if not quote else 0
        if character == "," and depth == 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += character
    stripped = [piece.strip() for piece in pieces if piece.strip()]
    if not equals or not path.strip() or not stripped:
        raise UserError(f"--vary takes part.field=value,value,..., got {text!r}")
    return [f"{path.strip()}={value}" for value in stripped]


class _Change(NamedTuple):
    """One assignment."""

    path: list[str]  # relative to the value it is applied to
    text: str
    full_path: str  # as the user typed it
    root: Any  # settings that all assignments are applied to


def _apply(value: Any, changes: list[_Change], hint: Any) -> Any:
    first = changes[0]
    if not is_settings(value):
        raise UserError(
            f"--set {first.full_path}: {first.path[0]!r} is not a field of {value!r}, "
            f"which is a plain value"
        )
    hints, names, updates = get_type_hints(type(value)), [f.name for f in fields(value)], {}
    changes = [_with_current_name(type(value), change) for change in changes]
    for name in dict.fromkeys(change.path[0] for change in changes):
        own = [change for change in changes if change.path[0] == name]
        if name not in names:
            raise _unknown_field(value, own[0], hint)
        updates[name] = getattr(value, name)
        for change in own:
            if len(change.path) == 1:
                data = _parse_text(hints[name], change.text)
                updates[name] = parse_value(hints[name], data, change.full_path)
        inner = [change._replace(path=change.path[1:]) for change in own if len(change.path) > 1]
        if inner:
            updates[name] = _apply(updates[name], inner, hints[name])
    path = first.full_path if len(changes) == 1 else settings_name(type(value))
    return build_settings(lambda: replace(value, **updates), path)


def _with_current_name(cls: type, change: _Change) -> _Change:
    name = current_field_name(cls, change.path[0])
    if name == change.path[0]:
        return change
    warn_renamed("setting", change.path[0], name)
    return change._replace(path=[name, *change.path[1:]])


def _unknown_field(value: Any, change: _Change, hint: Any) -> UserError:
    """Return an error that suggests the right path, another kind of part, or similar names."""
    name, kind = change.path[0], settings_name(type(value))
    names = [f.name for f in fields(value)]
    part = change.full_path.removesuffix(".".join(change.path)).rstrip(".")
    if not part and name in (*_OPTIONS, *_FLAGS):
        option = f"--{name.replace('_', '-')}"
        words = option if name in _FLAGS else f"{option} {change.text}"
        return UserError(f"{name} is an option and no setting; write {words}")
    if not part and name in _PARTS:
        meant = ".".join([_PARTS[name], *(_SYNONYMS.get(each, each) for each in change.path[1:])])
        return UserError(f"no field of {kind} {name!r}; did you mean {meant}?")
    if name == "beta" and part in ("", "control"):
        return UserError(
            f"no field of {kind} 'beta'; for a fixed weight write --set 'control=Constant({change.text})'"
        )
    if not part or not difflib.get_close_matches(name, names, n=1):
        prefix = f"{part}." if part else ""
        known = [f"{prefix}{path}" for path, _ in iter_settings(value) if path]
        known += [path for path, _ in iter_settings(change.root) if path] if part else []
        for wanted in (name, _SYNONYMS.get(name)):
            paths = [path for path in dict.fromkeys(known) if path.rpartition(".")[2] == wanted]
            if paths:
                suggestion = " or ".join(paths)
                return UserError(f"no field of {kind} {name!r}; did you mean {suggestion}?")
    others = [cls for cls in settings_classes(hint) if name in (f.name for f in fields(cls))]
    if not others or not part:
        return unknown_name_error(f"field of {kind}", name, names)
    calls = ", ".join(f"{settings_name(cls)}({_needed_arguments(cls, name)})" for cls in others)
    return UserError(
        f"no field of {kind} {name!r}; other kinds of {part} have it: --set '{part}=KIND', "
        f"KIND one of {calls}"
    )


def _needed_arguments(cls: type, name: str) -> str:
    """Return the required fields of a class and the given one: `target=..., gamma=...`."""
    names = dict.fromkeys([*required_fields(cls), name])
    return ", ".join(f"{each}=..." for each in names)


def _parse_text(hint: Any, text: str) -> Any:
    """Return text as data for a field with this annotation.

    A string field takes the text as it is, unless it is quoted: a folder may be called `2024` or
    `faces (1)`.
    """
    data, options = _parse_literal(text), union_members(hint)
    is_quoted, is_none = text[:1] in "'\"", data is None and type(None) in options
    return data if str not in options or is_quoted or is_none else text


def _parse_literal(text: str) -> Any:
    """Return a number, name, tuple or constructor such as `PI(target=18)` as data."""
    try:
        check_nested_text(text)
        return _from_node(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text  # a plain word such as a path, or what cannot be read as a value


def _from_node(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if any(keyword.arg is None for keyword in keywords):
                raise ValueError("** is not supported here")
            positional = {index: _from_node(arg) for index, arg in enumerate(args)}
            named = {k.arg: _from_node(k.value) for k in keywords if k.arg}
            return {"type": name, **positional, **named}
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_from_node(item) for item in items]
        case ast.Name(id=name):
            return {"none": None, "None": None, "true": True, "false": False}.get(name, name)
        case _:
            return ast.literal_eval(node)
