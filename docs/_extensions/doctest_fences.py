"""Griffe extension: show examples in docstrings as code blocks in the API reference."""

import re

import griffe

_DOCTEST = re.compile(r"(?:^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)+", re.MULTILINE)


class DoctestFences(griffe.Extension):
    """Fence every block that starts with `>>>`, which Markdown would take for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object that was just loaded."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = _DOCTEST.sub(_fence, obj.docstring.value)


def _fence(match: re.Match[str]) -> str:
    return f"```pycon\n{match.group(0).rstrip()}\n```\n"
