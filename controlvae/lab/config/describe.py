"""Plain descriptions of settings, taken from the docstrings of their classes."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from controlvae.lab.config.renames import settings_name
from controlvae.lab.config.serialization import is_settings

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+):\s+(.*(?:\n {5,}.*)*)", re.MULTILINE)


class SettingDescription(NamedTuple):
    """One setting of an experiment."""

    path: str
    value: str  # as `--set` takes it
    help: str  # a sentence; empty if the class does not document the field


def field_descriptions(cls: type) -> dict[str, str]:
    """Return the description of each field in the `Args` or `Attributes` section of a docstring.

    Sections of base classes count, too.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = _SECTION.search(inspect.cleandoc(base.__doc__ or "") + "\n")
        for name, text in _ENTRY.findall(section[1]) if section else ():
            sentence = " ".join(text.split())
            descriptions[name] = sentence[:1].upper() + sentence[1:]
    return descriptions


def describe_settings(value: Any, path: str = "") -> Iterator[SettingDescription]:
    """Yield every setting of an experiment with its value and a sentence that explains it.

    Parts come before their fields. A part's value is the name of its class, and its sentence is
    the first line of the class's docstring.

    Args:
        value: An experiment or a part of one.
        path: The path of `value` within the experiment.
    """
    descriptions = field_descriptions(type(value))
    for f in fields(value):
        inner, item = f"{path}.{f.name}".lstrip("."), getattr(value, f.name)
        help_text = descriptions.get(f.name, "")
        if is_settings(item):
            summary = inspect.cleandoc(type(item).__doc__ or "").partition("\n")[0]
            yield SettingDescription(inner, settings_name(type(item)), summary or help_text)
            yield from describe_settings(item, inner)
        else:
            text = item if isinstance(item, str) else repr(item)
            yield SettingDescription(inner, text, help_text)
