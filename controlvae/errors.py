"""Errors meant for a person: one line that says what to do. The command line shows them without a traceback."""

import difflib
import shlex
from collections.abc import Iterable


class UserError(Exception):
    """A wrong name, value, file or missing data: exit status 2."""


class FactorsError(UserError):
    """A table of factors is not there or cannot be read, where the pictures it is about are at hand."""


class RunError(Exception):
    """Training could not go on, though the request was right: exit status 1."""


class Diverged(RunError):
    """A model's loss became NaN or infinite. Other runs of the same command are trained all the same."""


def shell_command(command: str, *words: object) -> str:
    """What to type, as a shell takes it: `controlvae resume 'my runs/first'`."""
    return shlex.join(["controlvae", command, *map(str, words)])


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """`no preset 'shaps2d'; did you mean 'shapes2d-vae'?`"""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
    return UserError(f"no {kind} {name!r}; {hint}")
